"""What the model service is to be made with, without any library that would run it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Precision = Literal["float32", "bfloat16"]
"""Of the layers. Embeddings, norms, logits and what the optimizer moves are float32 in any case."""

LogprobsMode = Literal["raw", "processed"]


@dataclass(frozen=True, slots=True)
class LoraConfig:
    """Train low-rank adapters beside frozen weights, in PEFT's terms."""

    rank: int = 8
    alpha: float = 16.0
    """The adapter's product is multiplied by alpha / rank."""
    attention_only: bool = False
    """True leaves the feed-forward matrices without adapters."""


@dataclass(frozen=True, slots=True)
class ModelOptions:
    """How one model is served and trained."""

    max_tokens: int | None = None
    """Longest sequence; None takes the base model's own."""
    max_rows: int = 64
    """Completions generated at once."""
    keep_versions: int = 6
    """Newest versions held in memory; older ones are read again when asked for."""
    logprobs_mode: LogprobsMode = "raw"
    """What the endpoint reports: log-probs of the model itself, or of the distribution at the request's temperature."""
    sampler_threads: int = 1
    trainer_threads: int = 1
    device: str = "cpu"
    precision: Precision = "float32"
    lora: LoraConfig | None = None
    """None trains all parameters."""
