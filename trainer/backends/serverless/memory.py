"""The shipped fake of W&B's serverless training, over HTTP: it "trains" what it is sent, and serves nothing.

Its answers are made of the types of ART's client, and a body is read by ART's own trajectories, so both keep to what
ART has. What the real service does beyond that is not known here. A checkpoint remembers what it was trained on.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web
from art.serverless.client import Checkpoint, DeleteCheckpointsResponse, Model, TrainingJob, TrainingJobEvent
from art.trajectories import TrajectoryGroup
from pydantic import ValidationError

Body = dict[str, Any]
Answer = Body | web.Response
Handler = Callable[[web.Request], Awaitable[Answer]]

HOST = "127.0.0.1"
LARGEST_BODY_BYTES = 2**28
PAGE_SIZE = 20
HELD_LOOK_S = 0.02


@dataclass(slots=True)
class MemoryJob:
    """A batch that was sent."""

    job_id: str
    model_id: str
    groups: list[TrajectoryGroup]
    config: Body
    due_s: float
    """Of the clock, when it ends."""
    events: list[TrainingJobEvent] = field(default_factory=list)

    def add_event(self, kind: Any, data: Body) -> None:
        """Append an event."""
        event_id = f"{self.job_id}-event-{len(self.events)}"
        self.events.append(TrainingJobEvent(id=event_id, type=kind, data=data))


@dataclass(slots=True)
class MemoryModel:
    model: Model
    checkpoints: dict[int, Checkpoint] = field(default_factory=dict)
    """By step."""
    trained_jobs: list[str] = field(default_factory=list)
    """Those that moved the weights, in their order."""
    newest_step: int = 0


@dataclass(frozen=True, slots=True)
class ScriptedFailure:
    """What the next request of a kind comes to."""

    call: str
    """`create_model`, `list_checkpoints`, `delete_checkpoints`, `create_job` or `list_events`."""
    status: int | None
    """None cuts the connection."""
    is_late: bool = False
    """Whether the service does what it was asked, before it fails."""


@dataclass(slots=True)
class MemoryServerless:
    """The service's memory; `serve` gives it an address."""

    api_key: str = "key"
    step_s: float = 0.0
    """How long a job takes."""
    paused: bool = False
    """Whether jobs wait."""
    failure_message: str | None = None
    """Of the jobs that end from now on; None lets them train."""
    failures: list[ScriptedFailure] = field(default_factory=list)
    held_calls: set[str] = field(default_factory=set)
    """Requests of these kinds are done at once, and answered when they are no longer named here."""
    models: dict[str, MemoryModel] = field(default_factory=dict)
    jobs: dict[str, MemoryJob] = field(default_factory=dict)
    clock_s: Callable[[], float] = time.monotonic

    @asynccontextmanager
    async def serve(self) -> AsyncIterator[str]:
        """Listen on a free port of loopback; yield the address for `url`."""
        app = web.Application(client_max_size=LARGEST_BODY_BYTES)
        checkpoints = "/v1/preview/models/{model_id}/checkpoints"
        app.add_routes(
            [
                web.post("/v1/preview/models", self._handler("create_model", self._create_model)),
                web.get(checkpoints, self._handler("list_checkpoints", self._list_checkpoints)),
                web.delete(checkpoints, self._handler("delete_checkpoints", self._delete_checkpoints)),
                web.post("/v1/preview/training-jobs", self._handler("create_job", self._create_job)),
                web.get("/v1/preview/training-jobs/{job_id}/events", self._handler("list_events", self._list_events)),
            ]
        )
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        try:
            await web.TCPSite(runner, HOST, 0).start()
            yield f"http://{HOST}:{runner.addresses[0][1]}/v1"
        finally:
            await runner.cleanup()

    def finish_jobs(self) -> None:
        """End the jobs that are due, oldest first."""
        for job in self.jobs.values():
            is_over = any(event.type in ("training_ended", "training_failed") for event in job.events)
            if not is_over and not self.paused and self.clock_s() >= job.due_s:
                self._finish(job)

    def _finish(self, job: MemoryJob) -> None:
        if self.failure_message is not None:
            job.add_event("training_failed", {"error_message": self.failure_message})
            return
        members = [trajectory for group in job.groups for trajectory in group.trajectories]
        job.add_event("training_started", {"num_sequences": len(members)})
        for _ in members:
            job.add_event("gradient_step", {"loss/train": 0.5, "loss/grad_norm": 1.0, "loss/entropy": 2.0})
        job.add_event("training_ended", {})
        memory = self.models[job.model_id]
        memory.newest_step += 1
        memory.trained_jobs.append(job.job_id)
        step = memory.newest_step
        checkpoint_id = f"{job.model_id}-step-{step}"
        memory.checkpoints[step] = Checkpoint(id=checkpoint_id, step=step, metrics={"loss/train": 0.5})

    async def _create_model(self, request: web.Request) -> Answer:
        body = await request.json()
        entity = body["entity"] or "default-entity"
        for memory in self.models.values():
            model = memory.model
            if (model.entity, model.project, model.name) == (entity, body["project"], body["name"]):
                return model.model_dump() if body["return_existing"] else _refuse(409, "the model exists")
        model_id = f"model-{len(self.models) + 1}"
        model = Model(
            id=model_id,
            entity=entity,
            project=body["project"],
            name=body["name"],
            base_model=body["base_model"],
            run_id=f"run-{model_id}",
        )
        self.models[model_id] = MemoryModel(model)
        return model.model_dump()

    async def _list_checkpoints(self, request: web.Request) -> Answer:
        if (memory := self.models.get(request.match_info["model_id"])) is None:
            return _refuse(404, "there is no such model")
        is_newest_first = request.query.get("order", "desc") == "desc"
        steps = sorted(memory.checkpoints, reverse=is_newest_first)
        return _make_page([memory.checkpoints[step].model_dump() for step in steps], request)

    async def _delete_checkpoints(self, request: web.Request) -> Answer:
        if (memory := self.models.get(request.match_info["model_id"])) is None:
            return _refuse(404, "there is no such model")
        steps = (await request.json())["steps"]
        missing = [step for step in steps if memory.checkpoints.pop(step, None) is None]
        return DeleteCheckpointsResponse(deleted_count=len(steps) - len(missing), not_found_steps=missing).model_dump()

    async def _create_job(self, request: web.Request) -> Answer:
        body = await request.json()
        if body["model_id"] not in self.models:
            return _refuse(404, "there is no such model")
        try:
            groups = [TrajectoryGroup.model_validate(group) for group in body["trajectory_groups"]]
        except ValidationError as error:
            return _refuse(422, str(error))
        job_id = f"job-{len(self.jobs) + 1}"
        due_s = self.clock_s() + self.step_s
        self.jobs[job_id] = MemoryJob(job_id, body["model_id"], groups, body["experimental_config"] or {}, due_s)
        return TrainingJob(id=job_id).model_dump()

    async def _list_events(self, request: web.Request) -> Answer:
        if (job := self.jobs.get(request.match_info["job_id"])) is None:
            return _refuse(404, "there is no such job")
        return _make_page([event.model_dump() for event in job.events], request)

    def _handler(self, call: str, handle: Handler) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        async def answer(request: web.Request) -> web.StreamResponse:
            if request.headers.get("Authorization") != f"Bearer {self.api_key}":
                return _refuse(401, "the key is not known")
            failure = next((failure for failure in self.failures if failure.call == call), None)
            if failure is not None:
                self.failures.remove(failure)
            self.finish_jobs()
            content = await handle(request) if failure is None or failure.is_late else None
            while call in self.held_calls:  # noqa: ASYNC110 - whoever holds it need not know of the loop
                await asyncio.sleep(HELD_LOOK_S)
            if failure is not None and failure.status is not None:
                return _refuse(failure.status, f"{call} fails, as the script has it")
            if failure is not None or content is None:
                if request.transport is not None:
                    request.transport.abort()
                raise ConnectionResetError(f"{call} is cut")
            return content if isinstance(content, web.Response) else web.json_response(content)

        return answer


def _make_page(items: list[Body], request: web.Request) -> Body:
    """Return a page of what comes after an id, as OpenAI's cursor pages have it."""
    if (after := request.query.get("after")) is not None:
        items = items[[item["id"] for item in items].index(after) + 1 :]
    size = int(request.query.get("limit", PAGE_SIZE))
    return {"data": items[:size], "has_more": len(items) > size}


def _refuse(status: int, message: str) -> web.Response:
    """Return an error; the pause that it names lets a client repeat a request at once."""
    headers = {"retry-after-ms": "1"}
    return web.json_response({"error": {"message": message}}, status=status, headers=headers)
