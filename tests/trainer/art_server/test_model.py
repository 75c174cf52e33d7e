import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from rollbus.schemas.errors import ConfigurationError
from rollbus.trainer.art_server.checkpoints.checkpoint import is_complete, save_checkpoint
from rollbus.trainer.art_server.endpoint.tokenizer import load_tokenizer, render_chat
from rollbus.trainer.art_server.model.config import ModelConfig, read_config
from rollbus.trainer.art_server.model.model import build_model, head, initialize, trunk
from tests.models import create_model, load_model

SMALL = ModelConfig(layers=2, width=64, heads=4, kv_heads=2, feed_forward=128, max_tokens=128)
PLAIN = SMALL.to_hf()


def logits(model: nn.Module, token_ids: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return head(model, trunk(model, token_ids))


def test_a_base_model_is_what_transformers_loads(base_model: Path) -> None:
    transformers = pytest.importorskip("transformers")
    transformers.logging.disable_progress_bar()
    theirs = transformers.AutoModelForCausalLM.from_pretrained(str(base_model), local_files_only=True)
    token_ids = torch.randint(0, 384, (2, 40), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        expected = theirs(token_ids).logits
    assert torch.allclose(logits(load_model(base_model)[0], token_ids), expected, atol=1e-5)


def test_untied_model_keeps_its_own_output_matrix(tmp_path: Path, tokenizer: Any) -> None:
    config = ModelConfig(layers=1, width=32, heads=2, kv_heads=1, feed_forward=32, max_tokens=64, tied=False)
    path = create_model(tmp_path / "untied", config, tokenizer, seed=1)
    model, loaded = load_model(path)
    assert loaded == config
    assert "output.weight" in model.state_dict()


def test_the_same_seed_gives_the_same_weights() -> None:
    first, second, other = build_model(SMALL), build_model(SMALL), build_model(SMALL)
    initialize(first, 3)
    initialize(second, 3)
    initialize(other, 4)
    pairs = zip(first.parameters(), second.parameters(), strict=True)
    assert all(torch.equal(tensor, other_tensor) for tensor, other_tensor in pairs)
    assert not torch.equal(next(first.parameters()), next(other.parameters()))


@pytest.mark.parametrize(
    ("config", "says"),
    [
        (
            {"model_type": "qwen3_moe"},
            "'qwen3_moe'; this service runs llama, mistral, ministral, ",
        ),
        ({}, "of type None"),
        (PLAIN | {"model_type": "gemma3_text", "use_bidirectional_attention": True}, "`use_bidirectional_attention`"),
        (PLAIN | {"rope_scaling": {"type": "dynamic", "factor": 4.0}}, "'dynamic'"),
        (PLAIN | {"hidden_act": "gelu"}, "'gelu'"),
        (PLAIN | {"quantization_config": {"quant_method": "gptq"}}, "quantised by gptq"),
        ({"model_type": "qwen2", "max_position_embeddings": 64}, "lacks 'vocab_size'"),
    ],
)
def test_another_kind_of_model_is_refused_by_name(config: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        ModelConfig.from_hf(config)


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"hidden_size": "wide"}, "has a wrong number: .*wide"),
        ({"num_hidden_layers": None}, "has a wrong number"),
        ({"num_attention_heads": 3}, "contradicts itself"),
        ({"num_key_value_heads": 3}, "contradicts itself"),
        ({"num_attention_heads": 0}, "contradicts itself"),
        ({"num_key_value_heads": 0}, "contradicts itself"),
    ],
)
def test_an_impossible_config_is_refused(changed: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        ModelConfig.from_hf(SMALL.to_hf() | changed)


def test_a_config_that_is_not_an_object_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(ConfigurationError, match=r"config\.json must be a JSON object, not a list"):
        read_config(tmp_path)


def test_a_checkpoint_copies_no_other_weights_from_its_base(base_model: Path, tmp_path: Path) -> None:
    """Model repositories hold the same weights in several formats, and trainers leave their state next to them."""
    base = shutil.copytree(base_model, tmp_path / "base")
    others = ["pytorch_model.bin", "pytorch_model.bin.index.json", "model-q4.gguf", "optimizer.pt", "rng_state.pth"]
    others += ["adapter_config.json", "adapter_model.safetensors"]
    for name in (*others, "merges.txt"):
        (base / name).touch()
    model, config = load_model(base)
    save_checkpoint(tmp_path / "0001", model, config, base=base, provenance={"version": 1})
    there = {path.name for path in (tmp_path / "0001").iterdir()}
    assert {"config.json", "tokenizer.json", "merges.txt", "model.safetensors"} <= there
    assert not there.intersection(others)
    (tmp_path / "0001" / "adapter_config.json").touch()  # as earlier releases copied it
    assert is_complete(tmp_path / "0001"), "it would be taken for a torn adapter, and removed"


def test_board_symbols_are_tokens_of_their_own(tokenizer: Any) -> None:
    token_texts = [tokenizer.decode(token_id) for token_id in tokenizer.encode("1OX\n7 8")]
    assert token_texts == ["1", "O", "X", "\n", "7", " ", "8"]
    assert len(tokenizer) == 384


def test_any_text_survives_the_tokenizer(tokenizer: Any) -> None:
    text = "Größe 9 → \t<|x|>\n日本語 choose"
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_chat_ends_where_the_answer_begins(base_model: Path) -> None:
    tokenizer = load_tokenizer(base_model)
    prompt = render_chat(tokenizer, [{"role": "user", "content": "1"}], None)
    assert tokenizer.decode(prompt) == "<|im_start|>user\n1<|im_end|>\n<|im_start|>assistant\n"


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("tokenizer.json", "{}", r"the tokenizer of .*damaged cannot be read"),
        ("tokenizer_config.json", '{"eos_token"', r"damaged/tokenizer_config\.json is not JSON"),
    ],
)
def test_a_tokenizer_that_cannot_be_read_is_named(
    base_model: Path, tmp_path: Path, file: str, text: str, message: str
) -> None:
    shutil.copytree(base_model, tmp_path / "damaged")
    (tmp_path / "damaged" / file).write_text(text)
    with pytest.raises(ConfigurationError, match=message):
        load_tokenizer(tmp_path / "damaged")
    with pytest.raises(ConfigurationError, match=r"no tokenizer at .*nowhere"):
        load_tokenizer(tmp_path / "nowhere")


def test_a_tokenizer_without_an_end_token_is_refused(base_model: Path, tmp_path: Path) -> None:
    path = tmp_path / "endless"
    shutil.copytree(base_model, path)
    tokenizer_config = json.loads((path / "tokenizer_config.json").read_text())
    (path / "tokenizer_config.json").write_text(json.dumps({**tokenizer_config, "eos_token": None}))
    with pytest.raises(ConfigurationError, match="no eos_token"):
        load_tokenizer(path)
