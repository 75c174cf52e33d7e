"""A Qwen2-shaped language model from torchtune's builders, and its configuration as Hugging Face writes it.

`trunk` runs the layers and `head` the projection to the vocabulary, so that callers project only the positions
they need; logits are always float32. torchtune's own decoder loop is bypassed for that reason, its layers are not.
"""

import json
import logging
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from rollbus.schemas.errors import ConfigurationError
from rollbus.trainer.backends.model_settings import LoraConfig, Precision
from rollbus.trainer.service.model.lora import ATTENTION

with warnings.catch_warnings():  # torchtune imports torchao, which warns and logs about parts that are not used here
    warnings.simplefilter("ignore")
    logging.getLogger("torchao").setLevel(logging.ERROR)
    from torchtune.models.qwen2 import lora_qwen2, qwen2  # type: ignore[import-untyped]
    from torchtune.models.qwen2._convert_weights import (  # type: ignore[import-untyped]
        qwen2_hf_to_tune,
        qwen2_tune_to_hf,
    )

INITIAL_DEVIATION = 0.02  # as Qwen2's initializer_range


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Shape of the network; the field names are ours, `to_hf` and `from_hf` translate."""

    vocabulary: int = 384
    layers: int = 2
    width: int = 128
    heads: int = 4
    kv_heads: int = 2
    feed_forward: int = 256
    max_tokens: int = 512
    """Longest sequence, prompt and completion together."""
    rope_theta: float = 10_000.0
    norm_epsilon: float = 1e-6
    tied: bool = True
    """Input embedding and output projection share one matrix."""

    @property
    def head_width(self) -> int:
        return self.width // self.heads

    def to_hf(self, *, eos_token_id: int | None = None) -> dict[str, Any]:
        return {
            "architectures": ["Qwen2ForCausalLM"],
            "model_type": "qwen2",
            "vocab_size": self.vocabulary,
            "num_hidden_layers": self.layers,
            "hidden_size": self.width,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "intermediate_size": self.feed_forward,
            "max_position_embeddings": self.max_tokens,
            "rope_parameters": {"rope_type": "default", "rope_theta": self.rope_theta},
            "rms_norm_eps": self.norm_epsilon,
            "tie_word_embeddings": self.tied,
            "hidden_act": "silu",
            "attention_dropout": 0.0,
            "use_sliding_window": False,
            "initializer_range": INITIAL_DEVIATION,
            "eos_token_id": eos_token_id,
            "bos_token_id": None,
            "dtype": "float32",
        }

    @classmethod
    def from_hf(cls, config: dict[str, Any], *, max_tokens: int | None = None) -> "ModelConfig":
        """ConfigurationError for a model that is not of Qwen2's shape."""
        if config.get("model_type") != "qwen2":
            raise ConfigurationError(
                f"base model is of type {config.get('model_type')!r}; this service runs Qwen2 shapes only "
                "(model_type 'qwen2'); use ART's own service for others"
            )
        if config.get("use_sliding_window"):
            raise ConfigurationError("base model uses sliding-window attention, which this service does not run")
        _require_plain_rope(config)
        if config.get("hidden_act", "silu") != "silu":
            raise ConfigurationError(
                f"base model's hidden_act is {config['hidden_act']!r}; this service runs 'silu' only"
            )
        try:
            rope = config.get("rope_parameters") or {"rope_theta": config.get("rope_theta", 1_000_000.0)}
            longest = int(config["max_position_embeddings"])
            found = cls(
                vocabulary=int(config["vocab_size"]),
                layers=int(config["num_hidden_layers"]),
                width=int(config["hidden_size"]),
                heads=int(config["num_attention_heads"]),
                kv_heads=int(config["num_key_value_heads"]),
                feed_forward=int(config["intermediate_size"]),
                max_tokens=min(longest, max_tokens) if max_tokens else longest,
                rope_theta=float(rope["rope_theta"]),
                norm_epsilon=float(config["rms_norm_eps"]),
                tied=bool(config.get("tie_word_embeddings", False)),
            )
        except KeyError as error:
            raise ConfigurationError(f"the base model's config.json lacks {error}") from error
        except (TypeError, ValueError) as error:
            raise ConfigurationError(f"the base model's config.json has a wrong number: {error}") from error
        if min(found.heads, found.kv_heads) < 1 or found.width % found.heads or found.heads % found.kv_heads:
            raise ConfigurationError(
                f"the base model's config.json contradicts itself: hidden_size {found.width}, num_attention_heads "
                f"{found.heads} and num_key_value_heads {found.kv_heads} must be positive, each a multiple of the "
                "next"
            )
        return found


def _require_plain_rope(config: dict[str, Any]) -> None:
    """Raise ConfigurationError for scaled rotary positions: run without, they would be another network."""
    for name in ("rope_scaling", "rope_parameters"):
        told = config.get(name) or {}
        kind = told.get("rope_type", told.get("type", "default"))
        if kind != "default":
            raise ConfigurationError(
                f"base model's {name} is of type {kind!r}; this service runs plain rotary positions only: take the "
                f"model without {name}, whose sequences are then as long as max_position_embeddings without it allows"
            )


@dataclass(frozen=True, slots=True)
class SequenceLimits:
    """Limits of a batch, for any architecture."""

    max_tokens: int
    vocabulary: int


def read_limits(directory: Path, *, max_tokens: int | None = None) -> SequenceLimits:
    """From the config.json of any causal language model."""
    loaded = _read_json(directory)
    try:
        longest = int(loaded["max_position_embeddings"])
        return SequenceLimits(min(longest, max_tokens) if max_tokens else longest, int(loaded["vocab_size"]))
    except KeyError as error:
        raise ConfigurationError(f"the base model's config.json lacks {error}") from error


def read_config(directory: Path, *, max_tokens: int | None = None) -> ModelConfig:
    return ModelConfig.from_hf(_read_json(directory), max_tokens=max_tokens)


def _read_json(directory: Path) -> dict[str, Any]:
    path = directory / "config.json"
    try:
        loaded: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ConfigurationError(f"no model at {directory}: config.json is missing") from error
    except ValueError as error:
        raise ConfigurationError(f"{path} is not JSON: {error}") from error
    if not isinstance(loaded, dict):
        raise ConfigurationError(f"{path} must be a JSON object, not a {type(loaded).__name__}")
    return loaded


def build_model(config: ModelConfig, lora: LoraConfig | None = None) -> nn.Module:
    """The network with weights not yet set."""
    shape: dict[str, Any] = {
        "vocab_size": config.vocabulary,
        "num_layers": config.layers,
        "num_heads": config.heads,
        "num_kv_heads": config.kv_heads,
        "embed_dim": config.width,
        "intermediate_dim": config.feed_forward,
        "max_seq_len": config.max_tokens,
        "norm_eps": config.norm_epsilon,
        "rope_base": config.rope_theta,
        "tie_word_embeddings": config.tied,
    }
    model: nn.Module
    if lora is None:
        model = qwen2(**shape)
    else:
        adapted = {"lora_attn_modules": list(ATTENTION), "apply_lora_to_mlp": not lora.attention_only}
        model = lora_qwen2(**shape, **adapted, lora_rank=lora.rank, lora_alpha=lora.alpha)
    return model


def set_precision(model: Any, precision: Precision) -> None:
    """Round the layers' matrices. Embeddings, the projection to the vocabulary and the norms stay float32."""
    if precision == "float32":
        return
    for name, parameter in model.layers.named_parameters():
        if not name.endswith("scale"):
            parameter.data = parameter.data.to(torch.bfloat16)


def initialize(model: nn.Module, seed: int) -> None:
    """Normal weights, zero biases, unit norms; the same seed gives the same bits."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in sorted(model.named_parameters()):
            if name.endswith("scale"):
                parameter.fill_(1.0)
            elif name.endswith("bias"):
                parameter.zero_()
            else:
                parameter.normal_(0.0, INITIAL_DEVIATION, generator=generator)


def to_hf_weights(weights: Mapping[str, Tensor], config: ModelConfig) -> dict[str, Tensor]:
    """Weights under Hugging Face's names, from those of `build_model`."""
    converted: dict[str, Tensor] = qwen2_tune_to_hf(
        weights,
        num_heads=config.heads,
        num_kv_heads=config.kv_heads,
        dim=config.width,
        tie_word_embeddings=config.tied,
    )
    return {name: value.detach().contiguous() for name, value in converted.items()}


def from_hf_weights(weights: dict[str, Tensor], config: ModelConfig) -> dict[str, Tensor]:
    """A state dict of `build_model(config)` from weights under Hugging Face's names."""
    converted: dict[str, Tensor] = qwen2_hf_to_tune(
        weights,
        num_heads=config.heads,
        num_kv_heads=config.kv_heads,
        dim=config.width,
        tie_word_embeddings=config.tied,
    )
    return converted


def trunk(
    model: Any,
    token_ids_B_T: Tensor,
    *,
    positions_B_T: Tensor | None = None,
    mask_B_T_S: Tensor | None = None,
) -> Tensor:
    """Hidden states [B, T, D] after the final norm. Without a mask attention is causal over each row."""
    dtype = model.layers[0].attn.q_proj.weight.dtype
    hidden: Tensor = model.tok_embeddings(token_ids_B_T).to(dtype)  # [B, T, D]
    for layer in model.layers:
        hidden = layer(hidden, mask=mask_B_T_S, input_pos=positions_B_T)
    normed: Tensor = model.norm(hidden)
    return normed


def head(model: Any, hidden: Tensor) -> Tensor:
    """Logits [..., V], computed in float32."""
    logits: Tensor = model.output(hidden.float())
    return logits
