"""Settings → a started backend over W&B's service."""

import os
from pathlib import Path

from rollbus.schemas.errors import ConfigurationError
from rollbus.trainer.backends.model_settings import Retention
from rollbus.trainer.backends.serverless.backend import ServerlessBackend
from rollbus.trainer.backends.serverless.follower import WaitLimits
from rollbus.trainer.backends.serverless.service import TrainingService
from rollbus.trainer.backends.serverless.settings import ServerlessAccess

API_KEY = "WANDB_API_KEY"
MAX_TOKENS = 32_768
"""Longest sequence that is sent; as ART has it, since the service does not say."""


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
    max_tokens: int | None,
    retention: Retention,
    accept_step: int | None,
) -> ServerlessBackend:
    """Return a backend that has found its model and its versions; its folder is `directory / model`."""
    backend = ServerlessBackend(
        model,
        service,
        directory / model,
        max_tokens=max_tokens or MAX_TOKENS,
        retention=retention,
        accept_step=accept_step,
        limits=WaitLimits(),
    )
    try:
        await backend.start()
    except BaseException:
        await backend.close()
        raise
    return backend
