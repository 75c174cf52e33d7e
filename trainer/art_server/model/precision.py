"""Which precision the layers have on a device, and how they get it."""

import logging
from typing import Any, Literal

import torch

from rollbus.trainer.backends.model_settings import Precision

logger = logging.getLogger(__name__)

BFLOAT16_INSTRUCTIONS = ("avx512_bf16", "amx_bf16", "bf16", "sve_bf16")
"""Of processors, by torch's names. Without one torch widens every number first: measured with AVX2 alone, products of
the sizes of SmolLM2 take 4 to 7 times as long as in float32."""


def choose_precision(chosen: Precision | Literal["auto"], device: str) -> Precision:
    """Return the precision of the layers; logs a warning where the one asked for is slow on this processor."""
    is_fast = not device.startswith("cpu") or any(map(torch.cpu.get_capabilities().get, BFLOAT16_INSTRUCTIONS))
    if chosen == "auto":
        return "bfloat16" if is_fast else "float32"
    if chosen == "bfloat16" and not is_fast:
        logger.warning(
            "this processor has no instructions for bfloat16, so `precision: bfloat16` is several times slower than "
            "float32 on it; `precision: auto` takes what is faster"
        )
    return chosen


def set_precision(model: Any, precision: Precision) -> None:
    """Round the layers' matrices. Embeddings, the projection to the vocabulary and the norms stay float32."""
    if precision == "float32":
        return
    for name, parameter in model.layers.named_parameters():
        if not name.endswith("scale"):
            parameter.data = parameter.data.to(torch.bfloat16)
