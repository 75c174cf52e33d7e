"""A PEFT adapter and its base model → one model: W + scale · B·A for each matrix that the adapter names.

What the formula does not cover (DoRA, biases, further modules, ranks that differ by matrix, an adapter that began with
a part of the weights) is refused by name.
The formula is LoRA's (Hu et al. 2021), with PEFT's scale: alpha / rank, or alpha / √rank with `use_rslora`.
"""

import math
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from rollbus.schemas.errors import ConfigurationError
from rollbus.schemas.ids import parse_json
from rollbus.trainer.art_server.model.inert_files import ADAPTER_CONFIG, weight_files
from rollbus.trainer.art_server.model.lora import ADAPTER, PREFIX

DOWN, UP = ".lora_A.weight", ".lora_B.weight"
NOT_MERGED = (
    *("alpha_pattern", "fan_in_fan_out", "layer_replication", "lora_bias", "modules_to_save", "rank_pattern"),
    *("trainable_token_indices", "use_dora"),
)
"""Settings of PEFT that make another formula, unless they are empty or off."""
BEGUN_WITH_WEIGHTS = ("corda", "loftq", "olora", "pissa")
"""How values of `init_lora_weights` begin with which PEFT takes the adapter's first product out of the weights."""


def merge_adapter(adapter: Path, base: Path, target: Path) -> None:
    """Write the base model's files with merged weights into `target`, an empty folder.

    ConfigurationError for an adapter that is of another kind, or does not fit the base model.
    """
    config = _read_adapter_config(adapter)
    scale = config["lora_alpha"] / (math.sqrt(config["r"]) if config.get("use_rslora") else config["r"])
    try:
        deltas = load_file(adapter / ADAPTER)
    except OSError as error:
        raise ConfigurationError(f"{adapter} has no {ADAPTER}; save the adapter with save_pretrained") from error
    except SafetensorError as error:
        raise ConfigurationError(f"{ADAPTER} in {adapter} cannot be read ({error}); copy it again") from error
    unmerged = {name for name in deltas if not name.endswith((DOWN, UP))}
    if unmerged:
        raise ConfigurationError(f"the adapter in {adapter} holds {min(unmerged)!r}, which is not a matrix of LoRA's")
    _require_pairs(adapter, deltas, config["r"])
    left = {name.removeprefix(PREFIX).removesuffix(DOWN): name for name in deltas if name.endswith(DOWN)}
    for file in weight_files(base):
        weights = _load_base(base / file)
        for name in [name for name in weights if name.removesuffix(".weight") in left]:
            down_name = left.pop(name.removesuffix(".weight"))
            down, up = deltas[down_name], deltas[down_name.removesuffix(DOWN) + UP]
            weights[name] = _add(weights[name], scale, up, down, name, base)
        save_file(weights, target / file, metadata={"format": "pt"})
    if left:
        raise ConfigurationError(f"{base} has no matrix {min(left)!r}, which the adapter in {adapter} changes")
    for path in base.iterdir():
        if path.is_file() and not (target / path.name).exists():
            shutil.copyfile(path, target / path.name)


def _require_pairs(adapter: Path, deltas: Mapping[str, Tensor], rank: int) -> None:
    """Raise ConfigurationError unless each matrix has its counterpart, both of the rank that the settings say."""
    for name, matrix in sorted(deltas.items()):
        is_down = name.endswith(DOWN)
        other_name = name.removesuffix(DOWN) + UP if is_down else name.removesuffix(UP) + DOWN
        other = deltas.get(other_name)
        if other is None:
            raise ConfigurationError(f"the adapter in {adapter} lacks {other_name!r}; save or copy it again")
        down, up = (matrix, other) if is_down else (other, matrix)
        if down.dim() != 2 or up.dim() != 2 or down.shape[0] != up.shape[1]:
            raise ConfigurationError(
                f"the ranks differ in {adapter}: {name!r} is {tuple(matrix.shape)}, and {other_name!r} is "
                f"{tuple(other.shape)}; save or copy the adapter again"
            )
        if down.shape[0] != rank:
            raise ConfigurationError(
                f"{name!r} is {tuple(matrix.shape)}, and {ADAPTER_CONFIG} in {adapter} says r {rank}, by which its "
                "scale would be another; save or copy the adapter again"
            )


def _load_base(path: Path) -> dict[str, Tensor]:
    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise ConfigurationError(f"{path} cannot be read ({error}); copy or download it again") from error


def _add(weight: Tensor, scale: float, up: Tensor, down: Tensor, name: str, base: Path) -> Tensor:
    if weight.shape != (up.shape[0], down.shape[1]):
        raise ConfigurationError(
            f"{name} of {base} is {tuple(weight.shape)}, and the adapter's is {(up.shape[0], down.shape[1])}; take the "
            "base model that the adapter was trained on"
        )
    return (weight.float() + scale * up.float() @ down.float()).to(weight.dtype)


def _read_adapter_config(adapter: Path) -> dict[str, Any]:
    try:
        config = dict(parse_json((adapter / ADAPTER_CONFIG).read_bytes()))
        rank, alpha = config["r"], config["lora_alpha"]
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise ConfigurationError(f"{adapter / ADAPTER_CONFIG} cannot be read: {error!r}") from error
    if config.get("peft_type") != "LORA":
        raise ConfigurationError(f"the adapter in {adapter} is of kind {config.get('peft_type')!r}; LORA is merged")
    if not (isinstance(rank, int) and rank > 0 and isinstance(alpha, int | float) and math.isfinite(alpha)):
        raise ConfigurationError(f"the adapter in {adapter} has r {rank!r} and lora_alpha {alpha!r}; it needs numbers")
    if config.get("alora_invocation_tokens"):
        raise ConfigurationError(
            f"the adapter in {adapter} works after certain tokens only (`alora_invocation_tokens`), so no merged model "
            "does what it does; train one without them"
        )
    unknown = [name for name in NOT_MERGED if config.get(name)]
    if config.get("bias", "none") != "none":
        unknown.append("bias")
    if str(begun := config.get("init_lora_weights")).lower().startswith(BEGUN_WITH_WEIGHTS):
        unknown.append(f"init_lora_weights: {begun}")
    if unknown:
        raise ConfigurationError(
            f"the adapter in {adapter} has `{unknown[0]}`, which is not merged here; merge it with PEFT's "
            "merge_and_unload, and import the folder that it saves"
        )
    return config
