"""SmolLM2-135M-Instruct, fetched as a user does, is the model that transformers runs: served, saved, adapted."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file
from torch import Tensor

from rollbus.trainer.art_server.checkpoints.checkpoint import save_checkpoint
from rollbus.trainer.art_server.endpoint.tokenizer import load_tokenizer, read_stop_ids, render_chat, renders_tools
from rollbus.trainer.art_server.model.config import read_config
from rollbus.trainer.art_server.model.model import head, trunk
from tests.models import load_model

QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
DEFAULT = "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"


@pytest.fixture(scope="module")
def smollm2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its folder, as the command prints it; the first run on a machine fetches and converts it."""
    done = subprocess.run(
        [Path(sys.executable).with_name("rollbus"), "model", "fetch", "smollm2"],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path_factory.mktemp("elsewhere"),
    )
    assert done.returncode == 0, done.stderr
    return Path(done.stdout.strip())


@pytest.fixture(scope="module")
def tokenizer(smollm2: Path) -> Any:
    return load_tokenizer(smollm2, vocabulary=read_config(smollm2).vocabulary)


@pytest.fixture(scope="module")
def prompt(tokenizer: Any) -> Tensor:
    return torch.tensor([render_chat(tokenizer, QUESTION, None)])


@pytest.fixture(scope="module")
def theirs(smollm2: Path) -> Any:
    transformers.logging.disable_progress_bar()
    model: Any = transformers.AutoModelForCausalLM
    return model.from_pretrained(str(smollm2), local_files_only=True, dtype=torch.float32).eval()


def logits(model: Any, tokens: Tensor) -> Tensor:
    with torch.no_grad():
        return head(model, trunk(model, tokens))


@pytest.mark.slow
def test_smollm2_gives_the_logits_of_transformers_and_a_right_answer(
    smollm2: Path, theirs: Any, tokenizer: Any, prompt: Tensor, tmp_path: Path
) -> None:
    model, config = load_model(smollm2, max_tokens=256)
    with torch.no_grad():
        expected = theirs(prompt).logits
    ours = logits(model, prompt)
    assert torch.allclose(ours, expected, atol=1e-4), float((ours - expected).abs().max())
    for _ in range(7):
        prompt = torch.cat([prompt, logits(model, prompt)[:, -1:].argmax(dim=-1)], dim=1)
    assert tokenizer.decode(prompt[0, -7:]) == "The capital of France is Paris."
    save_checkpoint(tmp_path / "0001", model, config, base=smollm2, provenance={"version": 1})
    saved, given = load_file(tmp_path / "0001" / "model.safetensors"), load_file(smollm2 / "model.safetensors")
    assert saved.keys() == given.keys()
    assert all(torch.equal(saved[name], given[name]) for name in saved)


def test_digits_are_tokens_of_their_own_and_the_turn_ends_with_its_mark(smollm2: Path, tokenizer: Any) -> None:
    """As in the model's own tokenizer: transformers' reading of the file has another end and five tokens more."""
    assert tokenizer.convert_ids_to_tokens(tokenizer.encode("order 4711!")) == ["order", "Ġ", "4", "7", "1", "1", "!"]
    assert (tokenizer.eos_token, tokenizer.eos_token_id, len(tokenizer)) == ("<|im_end|>", 2, 49152)
    assert read_stop_ids(smollm2) <= {2}
    text = "Größe 9 → \t<|x|>\n日本語 isn't"
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_smollm2_has_its_own_chat_template_with_tools(tokenizer: Any) -> None:
    question_text = "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"
    assert tokenizer.decode(render_chat(tokenizer, QUESTION, None)) == DEFAULT + question_text
    system = {"role": "system", "content": "Be brief."}
    chat_with_system = tokenizer.decode(render_chat(tokenizer, [system, *QUESTION], None))
    assert chat_with_system == "<|im_start|>system\nBe brief.<|im_end|>\n" + question_text
    tool = {"type": "function", "function": {"name": "stock", "parameters": {"type": "object"}}}
    chat_with_tools = tokenizer.decode(render_chat(tokenizer, [system, *QUESTION], [tool]))
    assert chat_with_tools.startswith(
        "<|im_start|>system\nBe brief.\nTo call one of these functions, answer with <tool_call>"
    )
    assert '<tools>\n{"name": "stock", "parameters": {"type": "object"}}\n</tools><|im_end|>\n' in chat_with_tools
    assert chat_with_tools.endswith(question_text)
    assert renders_tools(tokenizer)
