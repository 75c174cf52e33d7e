"""Weights or an adapter, optimizer state and provenance as one directory in Hugging Face layout, all or nothing.

A checkpoint is written under a temporary name, synced, and renamed; only then does it exist. `rollbus.json`
inside names the batch that made it, so a crash between the rename and the journal loses nothing.
"""

import json
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from rollbus.schemas.errors import ConfigurationError, UnavailableError
from rollbus.schemas.ids import parse_json
from rollbus.trainer.art_server.model.config import ModelConfig
from rollbus.trainer.art_server.model.inert_files import (
    ADAPTER_CONFIG,
    INDEX,
    MODEL_FILES,
    WEIGHTS,
    require_inside,
    weight_files,
)
from rollbus.trainer.art_server.model.lora import ADAPTER, from_peft, peft_config, to_peft
from rollbus.trainer.art_server.model.memory_limits import ran_out_of_memory
from rollbus.trainer.art_server.model.weights import from_hf_weights, to_hf_weights
from rollbus.trainer.backends.model_settings import LoraConfig

OPTIMIZER = "optimizer.safetensors"
PROVENANCE = "rollbus.json"
TEMPORARY_PREFIX = ".tmp-"
Provenance = Callable[[int, Mapping[str, float]], dict[str, Any]]
"""What to write into a checkpoint, from its version and the step's metrics."""


def save_model(directory: Path, model: nn.Module, config: ModelConfig, tokenizer: Any) -> None:
    """Write a base model directory: what ART and Hugging Face's loaders read."""
    partial = directory.with_name(TEMPORARY_PREFIX + directory.name)
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    tokenizer.save_pretrained(str(partial))
    hf_config = config.to_hf(eos_token_id=tokenizer.eos_token_id)
    (partial / "config.json").write_text(json.dumps(hf_config, indent=2) + "\n", encoding="utf-8")
    _write_weights(partial, to_hf_weights(model.state_dict(), config))
    publish_folder(partial, directory)


def save_checkpoint(
    directory: Path,
    model: nn.Module,
    config: ModelConfig,
    *,
    base: Path,
    provenance: Mapping[str, Any],
    masters: Mapping[str, nn.Parameter] | None = None,
    optimizer: torch.optim.Optimizer | None = None,
    lora: LoraConfig | None = None,
    before_publishing: Callable[[Path], None] = lambda partial: None,
) -> None:
    """Write the next version; config and tokenizer are copied from the base model.

    `masters` are the trained parameters as the optimizer has them, by name; without them the model's own. With `lora`
    only the adapter is written.

    Order: everything into `.tmp-NNNN`, `before_publishing` with it (to load it), sync each file and the directory,
    rename, sync the parent.
    """
    if directory.exists():
        raise ConfigurationError(f"refusing to replace checkpoint {directory}")
    partial = directory.with_name(TEMPORARY_PREFIX + directory.name)
    masters = dict(model.named_parameters()) if masters is None else masters
    try:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        for source in sorted(base.iterdir()):
            if source.is_file() and source.name in MODEL_FILES:
                require_inside(base, source)
                shutil.copyfile(source, partial / source.name)
        if lora is None:
            _write_weights(partial, to_hf_weights({**model.state_dict(), **masters}, config))
        else:
            save_file(to_peft(masters, config), partial / ADAPTER)
            (partial / ADAPTER_CONFIG).write_text(json.dumps(peft_config(lora, base, config), indent=2) + "\n")
        if optimizer is not None:
            save_file(optimizer_tensors(masters, optimizer), partial / OPTIMIZER)
        write_json(partial / PROVENANCE, provenance)
        before_publishing(partial)
        publish_folder(partial, directory)
    except (OSError, SafetensorError) as error:
        shutil.rmtree(partial, ignore_errors=True)
        raise UnavailableError(
            f"checkpoint {directory} could not be written ({error}); free space on its disk and submit the batch again"
        ) from error


def read_weights(directory: Path, config: ModelConfig) -> dict[str, Tensor]:
    """All weights, under the names of `build_model`, from one file or several.

    ConfigurationError if they cannot be read; an error of the allocator is raised as it came.
    """
    files = weight_files(directory)
    try:
        weights = {name: weight for file in files for name, weight in load_file(directory / file).items()}
        _require_plain_numbers(directory, weights)
        broken = [name for name, weight in weights.items() if not bool(torch.isfinite(weight).all())]
    except FileNotFoundError as error:
        raise ConfigurationError(f"no weights at {error.filename or directory}") from error
    except (SafetensorError, RuntimeError, ValueError) as error:
        if ran_out_of_memory(error):
            raise
        raise ConfigurationError(f"the weights in {directory} cannot be read: {error}") from error
    if broken:
        raise ConfigurationError(
            f"{len(broken)} weights in {directory} hold NaN or infinity, among them {broken[0]!r}; take another copy "
            "of this model, or roll back to an earlier version"
        )
    try:
        return from_hf_weights(weights, config)
    except KeyError as error:
        raise ConfigurationError(
            f"the weights in {directory} do not fit the model's config.json, which has no place for {error}"
        ) from error


def _require_plain_numbers(directory: Path, weights: Mapping[str, Tensor]) -> None:
    """Refuse numbers that mean nothing without their scales, such as those of fp8, whatever config.json says."""
    for name, weight in weights.items():
        if weight.dtype not in (torch.float32, torch.bfloat16, torch.float16, torch.float64):
            raise ConfigurationError(
                f"the weights in {directory} are stored in {str(weight.dtype).removeprefix('torch.')}, among them "
                f"{name!r}, and such weights cannot be trained; take the model's float16, bfloat16 or float32 weights"
            )


def read_adapter(directory: Path, lora: LoraConfig, config: ModelConfig) -> dict[str, Tensor]:
    """The adapter's weights, under the names of `build_model`.

    Their scale is in the settings; ConfigurationError if it differs from the one they were trained with.
    """
    try:
        alpha = parse_json((directory / ADAPTER_CONFIG).read_bytes())["lora_alpha"]
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise ConfigurationError(f"the adapter in {directory} cannot be read: {ADAPTER_CONFIG}: {error!r}") from error
    if alpha != lora.alpha:
        raise ConfigurationError(
            f"the adapter in {directory} was trained with `lora: {{alpha: {alpha:g}}}`, and the settings say "
            f"{lora.alpha:g}; put it back, or give this run another directory"
        )
    try:
        return from_peft(load_file(directory / ADAPTER), config)
    except FileNotFoundError as error:
        raise ConfigurationError(f"no adapter at {directory / ADAPTER}") from error
    except (SafetensorError, KeyError) as error:
        raise ConfigurationError(f"the adapter in {directory} cannot be read: {error}") from error


def load_optimizer(directory: Path, trained: Mapping[str, nn.Parameter], optimizer: torch.optim.Optimizer) -> bool:
    """Restore moments and step counts saved with the weights; return False if the checkpoint has none.

    ConfigurationError, and nothing is restored, if they cannot be read or are of other weights.
    """
    path = directory / OPTIMIZER
    if not path.exists():
        return False
    try:
        saved = load_file(path)
        states = {
            name: _moments(saved, name, parameter) for name, parameter in trained.items() if f"{name}.step" in saved
        }
    except (SafetensorError, ValueError, KeyError) as error:
        raise ConfigurationError(
            f"the optimizer's state at {path} cannot be read ({error}); put the file back from a backup, or roll back "
            "to another version"
        ) from error
    for name, state in states.items():
        optimizer.state[trained[name]] = state
    return True


def _moments(saved: Mapping[str, Tensor], name: str, parameter: nn.Parameter) -> dict[str, Tensor]:
    """Return what AdamW keeps of one parameter; ValueError if it has another shape."""
    moments = {key: saved[f"{name}.{key}"] for key in ("exp_avg", "exp_avg_sq")}
    if any(moment.shape != parameter.shape for moment in moments.values()):
        raise ValueError(f"{name} has another shape there")
    placed = {key: moment.clone().to(parameter.device) for key, moment in moments.items()}
    return {"step": saved[f"{name}.step"].clone(), **placed}


def optimizer_tensors(trained: Mapping[str, nn.Parameter], optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    return {
        f"{name}.{key}": value.detach().contiguous()
        for name, parameter in trained.items()
        for key, value in optimizer.state.get(parameter, {}).items()
    }


def _write_weights(directory: Path, weights: Mapping[str, Tensor]) -> None:
    save_file(dict(weights), directory / WEIGHTS, metadata={"format": "pt"})
    total = sum(weight.numel() * weight.element_size() for weight in weights.values())
    index = {"metadata": {"total_size": total}, "weight_map": dict.fromkeys(sorted(weights), WEIGHTS)}
    (directory / INDEX).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")


def read_provenance(directory: Path) -> dict[str, Any]:
    """Return what made a checkpoint; empty if that is missing or torn, OSError if it cannot be read now."""
    try:
        loaded = parse_json((directory / PROVENANCE).read_bytes())
    except (FileNotFoundError, ValueError):
        return {}
    return loaded if isinstance(loaded, dict) else {}


def is_complete(directory: Path) -> bool:
    """Whether every file a checkpoint needs is there and as long as its header says; weights are not read.

    An incomplete one may be removed. So a file that exists and cannot be read is a ConfigurationError, and whether this
    release supports the model is not asked here.
    """
    try:
        adapter = (directory / ADAPTER_CONFIG).exists() and not (directory / WEIGHTS).exists()
        weights = directory / (ADAPTER if adapter else WEIGHTS)
        weights.open("rb").close()  # safetensors reports any file that it cannot open as missing
        with safe_open(weights, "pt"):
            pass
        if not adapter:
            parse_json((directory / "config.json").read_bytes())
        return bool(read_provenance(directory))
    except (FileNotFoundError, SafetensorError, ValueError):
        return False
    except OSError as error:
        raise ConfigurationError(
            f"{error.filename or directory} cannot be read ({error.strerror}), so nothing was removed; see that its "
            "disk is there, that this user may read it and open enough files, and start again"
        ) from error


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write a small file under another name, sync it and rename it: it appears whole or not at all."""
    partial = path.with_suffix(".tmp")
    partial.write_text(json.dumps(dict(content), indent=2) + "\n", encoding="utf-8")
    _sync(partial)
    partial.rename(path)
    _sync(path.parent)


def publish_folder(partial: Path, final: Path) -> None:
    """Sync a folder's files and rename it: it appears whole or not at all."""
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
