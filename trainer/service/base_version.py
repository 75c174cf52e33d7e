"""Version 0: the base model as a checkpoint, written once, and the guard that it stays the same model."""

from __future__ import annotations

from pathlib import Path

from rollbus.schemas.errors import ConfigurationError
from rollbus.trainer.service.checkpoint import save_checkpoint
from rollbus.trainer.service.loading import ModelLoader
from rollbus.trainer.service.master_weights import MasterWeights
from rollbus.trainer.service.retention import BASE_VERSION


def write_base_version(directory: Path, loader: ModelLoader, base_model: Path) -> None:
    """Write what training starts from: the base model's weights in float32, or adapters that add nothing to them."""
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
        provenance={"version": BASE_VERSION, "parent": None, "base_model": base_model.name},
    )


def check_same_base(checkpoint: Path, base_model: Path) -> None:
    """ConfigurationError where the checkpoint is of another base model: its tokens would mean other texts."""
    for name in ("config.json", "tokenizer.json"):
        if (checkpoint / name).read_bytes() != (base_model / name).read_bytes():
            raise ConfigurationError(
                f"{name} of base model {base_model} is not that of checkpoint {checkpoint}; put the base model back "
                "that this run began with, or give `art_server: directory:` another folder"
            )
