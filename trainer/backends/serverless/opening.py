"""Settings → a started backend over W&B's service."""

import os
from pathlib import Path

from rollbus.schemas.errors import ConfigurationError
from rollbus.trainer.backends.model_settings import Retention
from rollbus.trainer.backends.serverless.backend import ServerlessBackend
from rollbus.trainer.backends.serverless.following import WaitLimits
from rollbus.trainer.backends.serverless.service import TrainingService
from rollbus.trainer.backends.serverless.settings import ServerlessAccess

API_KEY = "WANDB_API_KEY"


def find_api_key(access: ServerlessAccess) -> str:
    """Return the key of the settings, or of the environment; ConfigurationError if there is none.

    Call it before ART's environment is protected, which takes the variable away: ART would start a run of W&B's.
    """
    key = access.api_key.get_secret_value() if access.api_key else os.environ.get(API_KEY)
    if not key:
        raise ConfigurationError(f"W&B's serverless training needs a key: set {API_KEY}, or `backend: api_key:`")
    return key


async def open_serverless(
    service: TrainingService,
    *,
    model: str,
    directory: Path,
    max_tokens: int,
    retention: Retention,
    accept_step: int | None,
    waiting: WaitLimits,
) -> ServerlessBackend:
    """Return a backend that has found its model and its versions; its folder is `directory / model`."""
    backend = ServerlessBackend(
        model,
        service,
        directory / model,
        max_tokens=max_tokens,
        retention=retention,
        accept_step=accept_step,
        waiting=waiting,
    )
    try:
        await backend.start()
    except BaseException:
        await backend.close()
        raise
    return backend
