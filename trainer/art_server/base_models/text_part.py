"""A model of texts and images → the model of texts that is a part of it, as a folder of its own.

Gemma 3 from 4 billion parameters on and Ministral 3 are published so: config.json has the text model under
`text_config`, and the names of its weights begin with `language_model`. What reads images is left out, and said.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from transformers import AutoConfig
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from rollbus.schemas.errors import ConfigurationError
from rollbus.trainer.art_server.model.config import FAMILIES, WRAPPERS, read_settings
from rollbus.trainer.art_server.model.inert_files import INDEX, WEIGHTS
from rollbus.trainer.art_server.model.weights import OUTPUT

PREFIXES = {
    "language_model.model.": "model.",
    "language_model.lm_head.": "lm_head.",
    "model.language_model.": "model.",
    "lm_head.": "lm_head.",
}
"""How names of text weights begin, as published and as transformers calls them since; and how they do alone."""
OF_IMAGES = ("vision_tower.", "multi_modal_projector.", "model.vision_tower.", "model.multi_modal_projector.")
FROM_WHOLE = ("bos_token_id", "eos_token_id", "pad_token_id", "dtype", "torch_dtype", "quantization_config")
"""Settings that the text part takes from the whole where it has none."""


@dataclass(frozen=True, slots=True)
class TextPart:
    """The text model within another."""

    config: dict[str, Any]
    """Its config.json."""
    places: dict[str, tuple[Path, str]]
    """For each of its weights, the file and the name there."""
    left_out: int
    """How many weights are of images."""

    def write(self, folder: Path) -> None:
        """Write config.json and the weights, file by file, into a folder."""
        (folder / "config.json").write_text(json.dumps(self.config, indent=2), encoding="utf-8")
        files = sorted({path for path, _ in self.places.values()})
        for path in files:
            with safe_open(path, "pt") as stored:
                weights = {name: stored.get_tensor(old) for name, (file, old) in self.places.items() if file == path}
            save_file(weights, folder / path.name, metadata={"format": "pt"})
        if [path.name for path in files] != [WEIGHTS]:
            index = {"metadata": {}, "weight_map": {name: path.name for name, (path, _) in self.places.items()}}
            (folder / INDEX).write_text(json.dumps(index), encoding="utf-8")


def find_text_part(source: Path, weights: Iterable[Path]) -> TextPart | None:
    """Return the text model in a folder; None if the whole is not a known wrapper.

    ConfigurationError for weights that are neither of texts nor of images, since what they do would be lost unseen, and
    for a config.json that cannot be read.
    """
    whole = read_settings(source)
    if whole.get("model_type") not in WRAPPERS:
        return None
    text = whole.get("text_config")
    if not isinstance(text, dict) or text.get("model_type") not in FAMILIES:
        return None
    places, left_out = dict[str, tuple[Path, str]](), 0
    for path in weights:
        for name in _names_in(path):
            if (own_name := _name_alone(name)) is not None:
                places[own_name] = (path, name)
            elif name.startswith(OF_IMAGES):
                left_out += 1
            else:
                raise ConfigurationError(
                    f"{path} has {name!r}, a weight neither of the text part of a {whole['model_type']} model nor of "
                    "its images; save the text part as a model of its own"
                )
    return TextPart(_text_config(whole, text, has_head=OUTPUT in places), places, left_out)


def _text_config(whole: dict[str, Any], text: dict[str, Any], *, has_head: bool) -> dict[str, Any]:
    """Return the config.json of the text model: what it leaves out has transformers' values."""
    kind = text["model_type"]
    values = {name: whole[name] for name in FROM_WHOLE if whole.get(name) is not None} | text
    try:
        config: dict[str, Any] = AutoConfig.for_model(**values).to_dict()
    except (TypeError, ValueError, ArithmeticError, LookupError, AttributeError) as error:
        raise ConfigurationError(f"the base model's text_config has a wrong value: {error}") from error
    return config | {
        "architectures": [MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[kind]],
        # The file decides: one without an output matrix shares the embeddings, whatever a default says.
        "tie_word_embeddings": not has_head or whole.get("tie_word_embeddings") is True,
    }


def _names_in(path: Path) -> list[str]:
    try:
        with safe_open(path, "pt") as stored:
            return list(stored.keys())
    except (SafetensorError, OSError) as error:
        raise ConfigurationError(f"{path} cannot be read: {error}") from error


def _name_alone(name: str) -> str | None:
    for prefix, alone in PREFIXES.items():
        if name.startswith(prefix):
            return alone + name.removeprefix(prefix)
    return None
