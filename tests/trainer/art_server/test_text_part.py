"""A model of texts and images is imported as its text part, with the logits that the whole gives texts."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from rollbus.schemas.errors import ConfigurationError
from rollbus.trainer.art_server.base_models.importing import import_model
from rollbus.trainer.art_server.base_models.text_part import OF_IMAGES, PREFIXES
from rollbus.trainer.art_server.model.config import FAMILIES, WRAPPERS
from rollbus.trainer.art_server.model.inert_files import INDEX
from rollbus.trainer.art_server.model.model import head, trunk
from tests.models import load_model
from tests.trainer.art_server.test_families import GEMMA3_ROPE, LLAMA4, SHAPE, SMALL_IDS, TOKENS, WINDOW

VISION = {
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 28,
    "patch_size": 14,
}
KINDS: dict[str, dict[str, Any]] = {
    "gemma3": {
        "text_config": {"model_type": "gemma3_text", "head_dim": 16, "rope_parameters": GEMMA3_ROPE, **WINDOW},
        "vision_config": VISION | {"model_type": "siglip_vision_model"},
        "mm_tokens_per_image": 4,
    },
    "mistral3": {
        "text_config": {"model_type": "ministral3", "head_dim": 16, "rope_parameters": LLAMA4},
        "vision_config": VISION | {"model_type": "pixtral"},
    },
    "mistral3-untied": {
        "text_config": {"model_type": "ministral3", "head_dim": 16, "rope_parameters": LLAMA4},
        "vision_config": VISION | {"model_type": "pixtral"},
        "tie_word_embeddings": False,
    },
}
LOADER: Any = transformers.AutoModelForImageTextToText


def make_whole(path: Path, kind: str, tokenizer: Any, **options: Any) -> Any:
    """Write a tiny random model with a tokenizer, as transformers does; return it."""
    transformers.logging.disable_progress_bar()
    torch.manual_seed(1)
    settings = json.loads(json.dumps(KINDS[kind]))
    settings["text_config"] = SHAPE | SMALL_IDS | settings["text_config"]
    config = transformers.AutoConfig.for_model(kind.partition("-")[0], **settings)
    model = LOADER.from_config(config, attn_implementation="eager").eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn(parameter.shape))
    model.save_pretrained(path, **options)
    tokenizer.save_pretrained(path)
    return model


def rename_weights(path: Path, renamed: dict[str, str]) -> None:
    """Call the weights of a folder otherwise, by the beginnings of their names."""
    weights = load_file(path / "model.safetensors")
    for old, new in renamed.items():
        weights = {new + name.removeprefix(old) if name.startswith(old) else name: weights[name] for name in weights}
    save_file(weights, path / "model.safetensors", metadata={"format": "pt"})


def logits(folder: Path) -> torch.Tensor:
    model, _ = load_model(folder)
    with torch.no_grad():
        return head(model, trunk(model, TOKENS))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("files", ["one file", "several files"])
def test_the_text_part_answers_texts_as_the_whole_does(kind: str, files: str, tmp_path: Path, tokenizer: Any) -> None:
    whole = make_whole(tmp_path / kind, kind, tokenizer, **({"max_shard_size": "40KB"} if files != "one file" else {}))
    assert (tmp_path / kind / INDEX).exists() == (files != "one file")
    reports: list[str] = []
    imported = import_model(tmp_path / kind, tmp_path / "cache", report=reports.append)
    with torch.no_grad():
        expected = whole(input_ids=TOKENS).logits
    assert expected.std() > 0.1
    assert torch.allclose(logits(imported), expected, atol=1e-4)
    images = sum(name.startswith(OF_IMAGES) for name in whole_names(tmp_path / kind))
    assert images > 10
    assert f"taking the text part, without {images} weights that read images" in reports
    alone = transformers.AutoConfig.from_pretrained(str(imported))
    assert alone.architectures[0].endswith("ForCausalLM")
    assert alone.tie_word_embeddings == (kind != "mistral3-untied")


def test_the_names_that_transformers_gives_since_are_read_too(tmp_path: Path, tokenizer: Any) -> None:
    make_whole(tmp_path / "old", "mistral3-untied", tokenizer)
    shutil.copytree(tmp_path / "old", tmp_path / "new")
    renamed = {"language_model.model.": "model.language_model.", "language_model.lm_head.": "lm_head."}
    rename_weights(tmp_path / "new", renamed | {"vision_tower.": "model.vision_tower."})
    old, new = (import_model(tmp_path / name, tmp_path / "cache") for name in ("old", "new"))
    assert torch.equal(logits(old), logits(new))


def test_a_weight_that_is_neither_of_texts_nor_of_images_is_refused_by_name(tmp_path: Path, tokenizer: Any) -> None:
    make_whole(tmp_path / "odd", "gemma3", tokenizer)
    rename_weights(tmp_path / "odd", {"vision_tower.": "audio_tower."})
    with pytest.raises(
        ConfigurationError, match=r"'audio_tower\.[^']+', a weight neither of the text part of a gemma3"
    ):
        import_model(tmp_path / "odd", tmp_path / "cache")


def test_shared_embeddings_beside_another_output_matrix_are_refused(tmp_path: Path, tokenizer: Any) -> None:
    make_whole(tmp_path / "odd", "mistral3-untied", tokenizer)
    path = tmp_path / "odd" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"tie_word_embeddings": True}))
    with pytest.raises(ConfigurationError, match="tie_word_embeddings"):
        import_model(tmp_path / "odd", tmp_path / "cache")


def test_quantised_weights_and_a_whole_without_a_text_part_are_refused(tmp_path: Path, tokenizer: Any) -> None:
    make_whole(tmp_path / "small", "mistral3", tokenizer)
    path = tmp_path / "small" / "config.json"
    settings = json.loads(path.read_text())
    path.write_text(json.dumps(settings | {"quantization_config": {"quant_method": "fp8"}}))
    with pytest.raises(ConfigurationError, match="quantised by fp8, and these cannot be trained"):
        import_model(tmp_path / "small", tmp_path / "cache")
    path.write_text(json.dumps(settings))
    rename_weights(tmp_path / "small", {"language_model.model.": "vision_tower."})
    with pytest.raises(ConfigurationError, match="do not fit"):
        import_model(tmp_path / "small", tmp_path / "cache")


def test_every_wrapper_is_tried_and_its_text_is_of_a_family() -> None:
    assert {kind.partition("-")[0] for kind in KINDS} == set(WRAPPERS)
    assert {kind["text_config"]["model_type"] for kind in KINDS.values()} <= set(FAMILIES)
    assert all(prefix.endswith(".") for prefix in PREFIXES)


def whole_names(folder: Path) -> list[str]:
    return [name for path in folder.glob("*.safetensors") for name in load_file(path)]
