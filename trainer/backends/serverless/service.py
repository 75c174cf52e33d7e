"""What W&B's serverless training is asked. `client` fulfils it by ART's own client.

The service holds one line of checkpoints for each model, and a job goes on from the newest. It gives out a job's id in
the answer to the request that begins it, and knows no name of ours for a job.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from rollbus.schemas.errors import UnavailableError
from rollbus.trainer.backends.protocol import TrainTrajectory


class JobNotTakenError(UnavailableError):
    """The service has surely not begun the job: it answered that it did not, or no connection came about."""


class JobForgottenError(UnavailableError):
    """The service does not know a job of this id (any more)."""


@dataclass(frozen=True, slots=True)
class ServiceModel:
    """A model as the service knows it."""

    model_id: str
    entity: str
    project: str
    name: str
    base_model: str

    def name_step(self, step: int) -> str:
        """Return the name by which W&B's inference serves a checkpoint."""
        return f"wandb-artifact:///{self.entity}/{self.project}/{self.name}:step{step}"


@dataclass(frozen=True, slots=True)
class ServiceCheckpoint:
    """The newest checkpoint of a model; step 0 where it has none."""

    step: int
    metrics: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class JobEvent:
    event_id: str
    kind: str
    """`training_started`, `gradient_step`, `training_ended` or `training_failed`."""
    data: Mapping[str, Any]


class TrainingService(Protocol):
    """A service. UnavailableError may be asked again; RejectedError says that the request is wrong."""

    async def open_model(self) -> ServiceModel:
        """Return the model of the settings, made if it is new. ConfigurationError if the service refuses it."""
        ...

    async def newest_checkpoint(self, model_id: str) -> ServiceCheckpoint: ...

    async def begin_job(self, model_id: str, trajectories: Sequence[TrainTrajectory], config: Mapping[str, Any]) -> str:
        """Send a batch once and return the job's id. After any other error than JobNotTakenError and RejectedError the
        job may have begun.
        """
        ...

    async def list_events(self, job_id: str, after: str | None) -> tuple[JobEvent, ...]:
        """Return a job's events after one of them, oldest first; JobForgottenError if there is no such job."""
        ...

    async def delete_checkpoints(self, model_id: str, steps: Sequence[int]) -> None:
        """Delete checkpoints; harmless if they are gone."""
        ...

    async def close(self) -> None: ...
