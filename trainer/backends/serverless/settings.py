"""Which model is trained at W&B's serverless training, and with which key."""

from pydantic import Field, SecretStr

from rollbus.trainer.train_config import FrozenSettings

URL = "https://api.training.wandb.ai/v1"
"""As ART's client has it."""


class ServerlessAccess(FrozenSettings):
    """A model at W&B's serverless training."""

    url: str = URL
    api_key: SecretStr | None = None
    """`WANDB_API_KEY` of the environment without it."""
    entity: str | None = None
    """W&B's user or team; without it, the default one of the key."""
    project: str = Field(min_length=1)
    name: str = Field(min_length=1)
    """Of the model in that project. Nothing else may train it."""
    base_model: str = Field(min_length=1)
    """Name of the base model at the service, such as `OpenPipe/Qwen3-14B-Instruct`."""
