"""Version 0: the base model as a checkpoint, written once, and the check that the base model stays the same."""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rollbus.schemas.errors import ConfigurationError
from rollbus.trainer.art_server.checkpoints.checkpoint import save_checkpoint
from rollbus.trainer.art_server.checkpoints.loading import ModelLoader
from rollbus.trainer.art_server.model.inert_files import weight_files
from rollbus.trainer.art_server.model.master_weights import MasterWeights
from rollbus.trainer.backends.durable.retention import BASE_VERSION

BASE_WEIGHTS = "base_weights"
"""In the provenance of a version 0 of adapters: size and SHA-256 of each file of the base model's weights, by name."""


def write_base_version(directory: Path, loader: ModelLoader, base_model: Path) -> None:
    """Write version 0: the base model's weights in float32, or adapters that add nothing to them."""
    model = loader.fresh()
    masters = MasterWeights(model)
    if loader.lora is None:
        masters.load(loader.trained_weights(base_model))
    save_checkpoint(
        directory,
        model,
        loader.config,
        base=base_model,
        masters=masters.named,
        lora=loader.lora,
        provenance={
            "version": BASE_VERSION,
            "parent": None,
            "base_model": base_model.name,
            **({} if loader.lora is None else {BASE_WEIGHTS: _describe_weights(base_model)}),
        },
    )


def check_same_base(checkpoint: Path, base_model: Path) -> None:
    """Raise ConfigurationError if the checkpoint is of another base model: its tokens would mean other texts."""
    for name in ("config.json", "tokenizer.json"):
        if (checkpoint / name).read_bytes() != (base_model / name).read_bytes():
            raise _other_base_error(name, base_model, f"checkpoint {checkpoint}")


def check_same_weights(base_version: Mapping[str, Any], base_model: Path) -> None:
    """Raise ConfigurationError if the base model's weights are not those that version 0 noted: adapters need them."""
    note = base_version[BASE_WEIGHTS]
    for name in sorted({*note, *weight_files(base_model)}):
        if not _matches_note(base_model / name, note.get(name)):
            raise _other_base_error(name, base_model, f"version {BASE_VERSION}, on which these adapters were trained")


def _describe_weights(base_model: Path) -> dict[str, dict[str, Any]]:
    files = {name: base_model / name for name in weight_files(base_model)}
    return {name: {"bytes": file.stat().st_size, "sha256": _digest(file)} for name, file in files.items()}


def _matches_note(file: Path, note: Mapping[str, Any] | None) -> bool:
    """Whether size and hash are as noted; with another size nothing has to be read."""
    if note is None or not file.exists():
        return False
    return bool(file.stat().st_size == note["bytes"] and _digest(file) == note["sha256"])


def _digest(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()  # in blocks


def _other_base_error(name: str, base_model: Path, expected: str) -> ConfigurationError:
    return ConfigurationError(
        f"{name} of base model {base_model} is not that of {expected}; restore the base model "
        "that this run began with, or give `art_server: directory:` another folder"
    )
