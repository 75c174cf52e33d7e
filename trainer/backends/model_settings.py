"""What the model service is to be made with, without any library that would run it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Precision = Literal["float32", "bfloat16"]
"""Of the layers. Embeddings, norms, logits and what the optimizer moves are float32 in any case."""

LogprobsMode = Literal["raw", "processed"]

LEAST_TEMPERATURE = 0.01
"""Below it the most probable token is taken: logits divided by less are beyond what floats tell apart. (vLLM samples at
0.01 instead.) So nothing of what was asked for there can be trained."""


@dataclass(frozen=True, slots=True)
class LoraConfig:
    """Train low-rank adapters beside frozen weights, in PEFT's terms."""

    rank: int = 8
    alpha: float = 16.0
    """The adapter's product is multiplied by alpha / rank."""
    attention_only: bool = False
    """True leaves the feed-forward matrices without adapters."""


@dataclass(frozen=True, slots=True)
class ArtEngine:
    """ART's own model service: Unsloth trains adapters, a vLLM that ART starts serves them. It needs a GPU.

    None leaves ART's default.
    """

    quantisation: Literal["4bit", "8bit", "none"] = "4bit"
    """Of the frozen weights while training."""
    gpu_memory_utilization: float | None = None
    """vLLM's share of a GPU."""
    tensor_parallel_size: int | None = None
    """GPUs that one vLLM is split over."""
    gradient_accumulation: int = 1
    """Rows per optimizer step. Fewer than a batch has, and its later rows are trained by weights that have moved."""
    packing: bool = False
    """Several sequences in one row, kept apart by their mask."""
    trainer_gpus: tuple[int, ...] = ()
    inference_gpus: tuple[int, ...] = ()
    """Both empty: one GPU for both in turn, vLLM asleep while training."""
    vllm_url: str | None = None
    """A vLLM of one's own in the place of the one that ART starts."""


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
    art: ArtEngine | None = None
    """None takes our model service; otherwise ART's own."""
