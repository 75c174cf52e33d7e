"""W&B's serverless training, through ART's own client for it.

A request that begins a job is sent once. Reading is repeated by the client itself, three times. Every failure names the
service and what it was asked.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, cast

import httpx

from rollbus.schemas.errors import ConfigurationError, RejectedError, RollbusError, UnavailableError
from rollbus.trainer.backends.protocol import TrainTrajectory
from rollbus.trainer.backends.serverless.service import (
    JobEvent,
    JobForgottenError,
    JobNotTakenError,
    ServiceCheckpoint,
    ServiceModel,
)
from rollbus.trainer.backends.serverless.settings import ServerlessAccess

try:
    from art.serverless.client import Client, ExperimentalTrainingConfig
    from openai import APIStatusError

    from rollbus.trainer.backends.art_terms.groups import art_groups
except ImportError as error:
    raise ConfigurationError(
        f"the package `openpipe-art` is missing ({error}); install it with `pip install 'rollbus[serverless]'`, on "
        "Python 3.12"
    ) from error

WRONG_REQUEST = (400, 413, 422)
NOT_ALLOWED = (401, 403)
NOT_THERE = 404
NOT_TAKEN = (*NOT_ALLOWED, NOT_THERE, 429)
"""Answers of a service that has not begun a job. After a conflict or an error of its own it may have."""


class ServerlessClient:
    """Fulfils `TrainingService`."""

    def __init__(self, access: ServerlessAccess, api_key: str) -> None:
        self._access = access
        self._client = Client(api_key=api_key, base_url=access.url)
        self.url = access.url.rstrip("/")

    async def open_model(self) -> ServiceModel:
        """Make the model, or return the one that is there."""
        access = self._access
        try:
            async with self.asking(f"for the model {access.project}/{access.name}"):
                model = await self._client.models.create(
                    entity=access.entity,
                    project=access.project,
                    name=access.name,
                    base_model=access.base_model,
                    return_existing=True,
                )
                return ServiceModel(
                    _text(model.id),
                    _text(model.entity),
                    _text(model.project),
                    _text(model.name),
                    _text(model.base_model),
                )
        except (RejectedError, UnavailableError) as error:
            if _status_of(error) in (*WRONG_REQUEST, *NOT_ALLOWED, NOT_THERE):
                raise ConfigurationError(
                    f"{error}. Look at `backend:` url, entity, project, name and base_model, and at WANDB_API_KEY"
                ) from error
            raise

    async def newest_checkpoint(self, model_id: str) -> ServiceCheckpoint:
        """Return the newest checkpoint, as the service orders them."""
        async with self.asking("for the newest checkpoint"):
            async for checkpoint in self._client.models.checkpoints.list(limit=1, order="desc", model_id=model_id):
                return ServiceCheckpoint(int(checkpoint.step), dict(checkpoint.metrics or {}))
        return ServiceCheckpoint(0, {})

    async def begin_job(self, model_id: str, trajectories: Sequence[TrainTrajectory], config: Mapping[str, Any]) -> str:
        """Send the batch in one request."""
        groups = await asyncio.to_thread(art_groups, trajectories)
        try:
            async with self.asking(f"to train {len(trajectories)} trajectories"):
                job = await self._client.training_jobs.create(
                    model_id=model_id,
                    trajectory_groups=groups,
                    experimental_config=cast(ExperimentalTrainingConfig, dict(config)),
                )
                return _text(job.id)
        except UnavailableError as error:
            if _status_of(error) in NOT_TAKEN or _never_connected(error):
                raise JobNotTakenError(str(error)) from error
            raise

    async def list_events(self, job_id: str, after: str | None) -> tuple[JobEvent, ...]:
        """Return the events of all pages."""
        arguments: dict[str, Any] = {} if after is None else {"after": after}
        try:
            async with self.asking(f"for the events of job {job_id}"):
                listed = self._client.training_jobs.events.list(training_job_id=job_id, **arguments)
                return tuple([JobEvent(_text(event.id), str(event.type), dict(event.data)) async for event in listed])
        except UnavailableError as error:
            if _status_of(error) == NOT_THERE:
                raise JobForgottenError(str(error)) from error
            raise

    async def delete_checkpoints(self, model_id: str, steps: Sequence[int]) -> None:
        """Delete the checkpoints of these steps."""
        async with self.asking(f"to delete the checkpoints {list(steps)}"):
            await self._client.models.checkpoints.delete(model_id=model_id, steps=list(steps))

    async def close(self) -> None:
        """Close the connections."""
        await self._client.close()

    @asynccontextmanager
    async def asking(self, what: str) -> AsyncIterator[None]:
        """Turn any failure into one that names the service and what it was asked."""
        try:
            yield
        except RollbusError:
            raise
        except Exception as error:
            kind = RejectedError if getattr(error, "status_code", None) in WRONG_REQUEST else UnavailableError
            raise kind(f"{self.url} was asked {what}: {type(error).__name__}: {error}") from error


def _text(value: Any) -> str:
    """Return an id or a name; TypeError for anything else, since ART's client does not check an answer."""
    if not isinstance(value, str) or not value:
        raise TypeError(f"the answer has {value!r} where a name should be")
    return value


def _status_of(error: BaseException) -> int | None:
    """Return the HTTP status that an error came of, if it came of one."""
    cause = error.__cause__
    return cause.status_code if isinstance(cause, APIStatusError) else None


def _never_connected(error: BaseException) -> bool:
    cause = error.__cause__.__cause__ if error.__cause__ is not None else None
    return isinstance(cause, httpx.ConnectError | httpx.ConnectTimeout)
