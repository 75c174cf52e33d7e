"""What a validation plays, how often, and how many episodes at a time."""

from pathlib import Path
from typing import Any

from pydantic import Field, SecretStr, model_validator

from rollbus.trainer.train_config import FrozenSettings


class PlayLimits(FrozenSettings):
    """How the tasks of a validation are played."""

    concurrency: int = Field(default=16, ge=1)
    """Episodes at a time."""
    timeout_s: float = Field(default=120.0, gt=0)
    """For one try of one episode."""


class ValidationSettings(PlayLimits):
    """Held-out tasks that versions are measured on; see `trainer.validation`."""

    name: str = "held-out"
    """Of its evaluations, in SQL and in the rules that decide by them."""
    agent: str
    """What plays an episode: an entry point of `rollbus.evaluation_agents`, or `module:function`."""
    dataset: Path | None = None
    """JSON lines, or one JSON list: an object per example, with an `id` if it has one."""
    episodes: int | None = Field(default=None, ge=1)
    """Examples in turn; without it, each example once."""
    seed: int = 0
    interval_steps: int = Field(default=5, ge=1)
    """Measure every so many completed steps along a version's parents; the root always."""
    wait: bool = False
    """True trains no further batch until a version that is due has been measured; False at most one interval."""
    base_url: str | None = None
    """Where the model is asked, ending in /v1; the backend's own endpoint without it."""
    api_key: SecretStr | None = None
    """The backend's token without it."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Handed to the agent as they are."""

    @model_validator(mode="after")
    def _something_to_play(self) -> "ValidationSettings":
        if self.dataset is None and self.episodes is None:
            raise ValueError("validation needs a dataset, or the number of episodes that the agent makes up itself")
        return self
