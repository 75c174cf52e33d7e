"""Where a service with the Tinker API is, and what it trains."""

from pydantic import Field, SecretStr

from rollbus.trainer.train_config import FrozenSettings


class TinkerAccess(FrozenSettings):
    """A service that speaks the Tinker API."""

    url: str
    """Of the service: `https://tinker.thinkingmachines.dev/services/tinker-prod`, or your own."""
    api_key: SecretStr | None = None
    """`TINKER_API_KEY` of the environment without it."""
    base_model: str
    """Name of the base model at the service."""
    lora_rank: int = Field(default=32, ge=1)
