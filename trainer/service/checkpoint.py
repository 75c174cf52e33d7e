"""Weights, optimizer state and provenance as one directory in Hugging Face layout, written all or nothing.

A checkpoint is written under a temporary name, synced, and renamed; only then does it exist. `rollbus.json`
inside names the batch that made it, so a crash between the rename and the journal loses nothing.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from rollbus.schemas.errors import ConfigurationError, UnavailableError
from rollbus.trainer.service.model import (
    ModelConfig,
    build_model,
    from_hf_weights,
    initialize,
    read_config,
    to_hf_weights,
)

WEIGHTS = "model.safetensors"
OPTIMIZER = "optimizer.safetensors"
PROVENANCE = "rollbus.json"
TEMPORARY_PREFIX = ".tmp-"


def create_model(directory: Path, config: ModelConfig, tokenizer: Any, seed: int) -> Path:
    """Write a complete base model with fresh weights: config, tokenizer and safetensors."""
    if len(tokenizer) > config.vocabulary:
        raise ConfigurationError(
            f"tokenizer has {len(tokenizer)} entries, the model's vocabulary only {config.vocabulary}"
        )
    model = build_model(config)
    initialize(model, seed)
    save_model(directory, model, config, tokenizer)
    return directory


def save_model(directory: Path, model: nn.Module, config: ModelConfig, tokenizer: Any) -> None:
    """Write a base model directory: what ART and Hugging Face's loaders read."""
    partial = directory.with_name(TEMPORARY_PREFIX + directory.name)
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    tokenizer.save_pretrained(str(partial))
    hf_config = config.to_hf(eos_token_id=tokenizer.eos_token_id)
    (partial / "config.json").write_text(json.dumps(hf_config, indent=2) + "\n", encoding="utf-8")
    save_file(to_hf_weights(model, config), partial / WEIGHTS, metadata={"format": "pt"})
    _publish(partial, directory)


def save_checkpoint(
    directory: Path,
    model: nn.Module,
    config: ModelConfig,
    *,
    base: Path,
    provenance: Mapping[str, Any],
    optimizer: torch.optim.Optimizer | None = None,
    before_publishing: Callable[[Path], None] = lambda partial: None,
) -> None:
    """Write the next version beside the others; config and tokenizer are copied from the base model.

    Order: everything into `.tmp-NNNN`, `before_publishing` with it (to load it), sync each file and the directory,
    rename, sync the parent.
    """
    if directory.exists():
        raise ConfigurationError(f"refusing to replace checkpoint {directory}")
    partial = directory.with_name(TEMPORARY_PREFIX + directory.name)
    try:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        for source in sorted(base.iterdir()):
            if source.is_file() and source.suffix != ".safetensors" and source.name != PROVENANCE:
                shutil.copyfile(source, partial / source.name)
        save_file(to_hf_weights(model, config), partial / WEIGHTS, metadata={"format": "pt"})
        if optimizer is not None:
            save_file(optimizer_tensors(model, optimizer), partial / OPTIMIZER)
        (partial / PROVENANCE).write_text(json.dumps(dict(provenance), indent=2) + "\n", encoding="utf-8")
        before_publishing(partial)
        _publish(partial, directory)
    except (OSError, SafetensorError) as error:
        shutil.rmtree(partial, ignore_errors=True)
        raise UnavailableError(
            f"checkpoint {directory} could not be written ({error}); free space on its disk and submit the batch again"
        ) from error


def load_model(directory: Path, *, max_tokens: int | None = None) -> tuple[nn.Module, ModelConfig]:
    """The network of a base model or checkpoint directory."""
    config = read_config(directory, max_tokens=max_tokens)
    model = build_model(config)
    load_weights(directory, model, config)
    return model, config


def load_weights(directory: Path, model: nn.Module, config: ModelConfig) -> None:
    path = directory / WEIGHTS
    try:
        weights = load_file(path)
        model.load_state_dict(from_hf_weights(weights, config))
    except FileNotFoundError as error:
        raise ConfigurationError(f"no weights at {path}") from error
    except (SafetensorError, RuntimeError) as error:
        raise ConfigurationError(f"the weights in {path} do not fit the model's config.json: {error}") from error


def load_optimizer(directory: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> bool:
    """Restore moments and step counts saved with the weights; False if the checkpoint has none."""
    path = directory / OPTIMIZER
    if not path.exists():
        return False
    saved = load_file(path)
    for name, parameter in model.named_parameters():
        if f"{name}.step" in saved:
            moments = {key: saved[f"{name}.{key}"].clone().to(parameter.device) for key in ("exp_avg", "exp_avg_sq")}
            optimizer.state[parameter] = {"step": saved[f"{name}.step"].clone(), **moments}
    return True


def optimizer_tensors(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    return {
        f"{name}.{key}": value.detach().contiguous()
        for name, parameter in model.named_parameters()
        for key, value in optimizer.state.get(parameter, {}).items()
    }


def read_provenance(directory: Path) -> dict[str, Any]:
    try:
        loaded: dict[str, Any] = json.loads((directory / PROVENANCE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return loaded


def is_complete(directory: Path) -> bool:
    """Whether every file a checkpoint needs is there and its weights open."""
    try:
        load_file(directory / WEIGHTS)
        read_config(directory)
    except (OSError, SafetensorError, ConfigurationError):
        return False
    return bool(read_provenance(directory))


def _publish(partial: Path, final: Path) -> None:
    for path in sorted(partial.iterdir()):
        _sync(path)
    _sync(partial)
    partial.rename(final)
    _sync(final.parent)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
