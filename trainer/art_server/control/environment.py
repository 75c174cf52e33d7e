"""Settings that must be made before transformers or ART is imported: no telemetry, no downloads, no .env file."""

import os
import sys
import warnings

QUIET = {
    "WANDB_MODE": "disabled",
    "WEAVE_DISABLED": "true",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "PYTHON_DOTENV_DISABLED": "1",  # ART loads .env of the working directory at import
    "TOKENIZERS_PARALLELISM": "false",
}
UNUSED = ("sklearn", "boto3")
"""What transformers and accelerate import wherever it is installed, with scipy and botocore: a fifth of the time that a
start takes, and nothing that a model server calls."""


def leave_out_unused() -> None:
    """Let these look as if they were not installed; only for a process that runs nobody else's code."""
    for name in UNUSED:
        sys.modules.setdefault(name, None)  # type: ignore[arg-type]


def protect() -> None:
    """Call before the first import of either. Keep values that are set already, except an API key for wandb."""
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    if os.environ["WANDB_MODE"] == "disabled":
        os.environ.pop("WANDB_API_KEY", None)  # its mere presence makes ART start a run
    warnings.filterwarnings("ignore", category=SyntaxWarning, module="torchao")
