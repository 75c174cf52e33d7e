"""What trajectory builders and trainer adapters hand to each other, with the fields of the NeMo Agent Toolkit.

EpisodeItem → Trajectory → TrajectoryCollection (one inner list per example) → TrainingJobRef → TrainingJobStatus
"""

from enum import StrEnum
from typing import Any

from pydantic import BaseModel, Field, model_validator


class EpisodeItemRole(StrEnum):
    """Who speaks in an episode item."""

    USER = "user"
    ASSISTANT = "assistant"
    SYSTEM = "system"
    FUNCTION = "function"
    TOOL = "tool"
    ENVIRONMENT = "environment"
    OTHER = "other"


class EpisodeItem(BaseModel):
    """One message of an episode."""

    role: EpisodeItemRole = Field(description="The role of the agent (e.g., 'user', 'assistant').")
    content: str = Field(description="The content of the message.")
    logprobs: Any | None = Field(default=None, description="Log probabilities of the message tokens.")
    metadata: dict[str, Any] | None = Field(default=None, description="Anything else about the message.")

    @model_validator(mode="after")
    def _assistant_has_logprobs(self) -> "EpisodeItem":
        if self.role is EpisodeItemRole.ASSISTANT and self.logprobs is None:
            raise ValueError("logprobs must be provided for assistant role.")
        return self


class OpenAIMessage(BaseModel):
    """One chat message of a prompt."""

    role: str = Field(description="The role of the message (e.g., 'user', 'assistant').")
    content: str = Field(description="The content of the message.")


class DPOItem(BaseModel):
    """One preference: of two answers to the same prompt, the better and the worse."""

    prompt: list[OpenAIMessage] | str = Field(description="The prompt messages leading to the response.")
    chosen_response: str = Field(description="The response chosen as better.")
    rejected_response: str = Field(description="The response rejected as worse.")


class Trajectory(BaseModel):
    """One run of the workflow on one example, and its reward."""

    episode: list[EpisodeItem] | list[DPOItem] = Field(description="The messages or preferences of the episode.")
    reward: float = Field(description="The reward of the whole trajectory.")
    shaped_rewards: list[float] | None = Field(default=None, description="Rewards of single steps, in order.")
    metadata: dict[str, Any] | None = Field(default=None, description="Anything else about the trajectory.")


class TrajectoryCollection(BaseModel):
    """Trajectories of one epoch; each inner list holds the attempts at one example."""

    trajectories: list[list[Trajectory]] = Field(description="Trajectories, grouped by example.")
    run_id: str = Field(description="The run that collected them.")

    def count(self) -> int:
        """Return how many trajectories there are in all groups."""
        return sum(len(group) for group in self.trajectories)


class TrainingJobRef(BaseModel):
    """Names a training job at its backend."""

    run_id: str = Field(description="The run the job belongs to.")
    backend: str = Field(description="The backend that trains it.")
    metadata: dict[str, Any] | None = Field(default=None, description="Anything else about the job.")


class TrainingStatusEnum(StrEnum):
    """The state of a training job."""

    PENDING = "pending"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELED = "canceled"


TERMINAL = frozenset({TrainingStatusEnum.COMPLETED, TrainingStatusEnum.FAILED, TrainingStatusEnum.CANCELED})


class TrainingJobStatus(BaseModel):
    """The state of a training job, in words."""

    run_id: str = Field(description="The run the job belongs to.")
    backend: str = Field(description="The backend that trains it.")
    status: TrainingStatusEnum = Field(description="The state of the job.")
    progress: float | None = Field(default=None, ge=0.0, le=100.0, description="Progress in percent.")
    message: str | None = Field(default=None, description="What there is to say about it.")
    metadata: dict[str, Any] | None = Field(default=None, description="Anything else about the job.")
