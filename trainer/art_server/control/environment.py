"""Settings that must be made before `import art`: no telemetry, no downloads, no surprise from a .env file."""

import os
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


def protect() -> None:
    """Call before the first import of `art`. Keep values that are set already, except an API key for wandb."""
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    if os.environ["WANDB_MODE"] == "disabled":
        os.environ.pop("WANDB_API_KEY", None)  # its mere presence makes ART start a run
    warnings.filterwarnings("ignore", category=SyntaxWarning, module="torchao")
