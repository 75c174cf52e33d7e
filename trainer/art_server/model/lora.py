"""Low-rank adapters: W becomes W + alpha / rank · B·A, of which only A and B are trained and stored.

Stored in PEFT's layout, which transformers, vLLM and ART read; names are translated here. B begins at zero, so the
first version is the base model exactly.
"""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from rollbus.trainer.art_server.model.config import ModelConfig
from rollbus.trainer.art_server.model.weights import from_hf_weights, to_hf_weights
from rollbus.trainer.backends.model_settings import LoraConfig

ADAPTER = "adapter_model.safetensors"
PREFIX = "base_model.model."


def is_adapter(name: str) -> bool:
    return name.endswith(("lora_a.weight", "lora_b.weight"))


def freeze_all_but_adapters(model: nn.Module) -> None:
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(is_adapter(name))


def initialize_adapters(model: nn.Module, seed: int) -> None:
    """A as a linear layer's own default, B zero; the same seed gives the same bits."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in sorted(model.named_parameters()):
            if name.endswith("lora_a.weight"):
                fresh = torch.empty(parameter.shape)
                bound = 1 / math.sqrt(parameter.shape[1])
                parameter.copy_(fresh.uniform_(-bound, bound, generator=generator))
            elif name.endswith("lora_b.weight"):
                parameter.zero_()


def to_peft(weights: Mapping[str, Tensor], config: ModelConfig) -> dict[str, Tensor]:
    adapters = {name: weight for name, weight in weights.items() if is_adapter(name)}
    return {PREFIX + name: weight for name, weight in to_hf_weights(adapters, config).items()}


def from_peft(weights: Mapping[str, Tensor], config: ModelConfig) -> dict[str, Tensor]:
    return from_hf_weights({name.removeprefix(PREFIX): weight for name, weight in weights.items()}, config)


def peft_config(lora: LoraConfig, base: Path, config: ModelConfig) -> dict[str, Any]:
    joined = config.family.joined
    attention = ["qkv_proj", "o_proj"] if "qkv" in joined else ["q_proj", "k_proj", "v_proj", "o_proj"]
    feed_forward = ["gate_up_proj", "down_proj"] if "gate_up" in joined else ["gate_proj", "up_proj", "down_proj"]
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": str(base),
        "r": lora.rank,
        "lora_alpha": lora.alpha,
        "target_modules": [*attention, *feed_forward],
        "lora_dropout": 0.0,
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
    }
