"""The ways to serve and train a model, each as a section `art_server:` and with what it needs of the machine."""

import importlib.util
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

LORA = {"rank": 16, "alpha": 32}


@dataclass(frozen=True, slots=True)
class Engine:
    """One way."""

    name: str
    options: Mapping[str, Any]
    """Of the section `art_server:`, without the model and the folder."""
    logprob_bound: float
    """Largest difference of one log-prob between sampler and learner at the same weights that is not a fault."""
    lacks: Callable[[str], str | None]
    """Device → why it cannot run here; None if it can."""
    learning_rate: float = 1e-4
    """Large enough that weights which did not arrive show as a difference of log-probs."""
    start_timeout_s: float = 180.0


def lacks_device(device: str) -> str | None:
    """Return why torch cannot compute on the device."""
    import torch

    if not device.startswith("cuda") or torch.cuda.is_available():
        return None
    return f"torch {torch.__version__} sees no CUDA device"


def lacks_own_engine(device: str) -> str | None:
    """Return why ART's own service, Unsloth and vLLM, cannot start."""
    if not device.startswith("cuda"):
        return f"it needs a GPU, and this check runs on {device}"
    if missing := lacks_device(device):
        return missing
    if importlib.util.find_spec("unsloth") is None:
        return "the package unsloth is missing; install the extra gpu"
    return None if shutil.which("uv") else "uv is missing; ART builds its vLLM environment with it"


def engines(device: str) -> tuple[Engine, ...]:
    """Return every engine, with its options on this device.

    Sums of 8-bit mantissas in two orders move the log-prob of an improbable token by 0.2 on SmolLM2; weights that are a
    step old move one by 3 and more. Adapters begin at zero, and need ten times the rate for that.
    """
    common_options = {"device": device, "max_rows": 32}
    return (
        Engine("ours, float32", {**common_options, "precision": "float32"}, 1e-3, lacks_device),
        Engine("ours, bfloat16", {**common_options, "precision": "bfloat16"}, 0.5, lacks_device),
        Engine(
            "ours, bfloat16, LoRA",
            {**common_options, "precision": "bfloat16", "lora": LORA},
            0.5,
            lacks_device,
            learning_rate=1e-3,
        ),
        Engine(
            "ART's own, LoRA",
            {"max_rows": 32, "logprobs_mode": "processed", "lora": LORA, "art": {"quantisation": "none"}},
            0.5,
            lacks_own_engine,
            learning_rate=1e-3,
            start_timeout_s=1800.0,
        ),
    )
