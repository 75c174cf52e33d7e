"""The routes of released ART servers, so that ART's and NeMo's existing clients can use ours.

    POST /register, /_get_step, /_prepare_backend_for_training, /_train_model (answers NDJSON), /_log,
         /_delete_checkpoint_files (also as /_delete_checkpoints), /close

These clients train on the advantages that ART computes, and always get the newest weights. `old_bodies` reads and
checks what is trained, `old_config` how; `rendered_prompts` marks a step on prompts that were rendered here, in its
metrics and in the checkpoint.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar

from starlette.responses import JSONResponse, StreamingResponse

from rollbus.runtime.tasks import start_task
from rollbus.schemas.errors import RejectedError, describe_error, is_retriable
from rollbus.trainer.art_server.checkpoints.journal import Failure
from rollbus.trainer.art_server.control.old_bodies import GRADIENT_STEPS, read_call, trainable
from rollbus.trainer.art_server.control.old_config import BETA, beta_of, kl_reference
from rollbus.trainer.art_server.endpoint.tokenizer import render_chat
from rollbus.trainer.backends import wire
from rollbus.trainer.backends.admission import Limits
from rollbus.trainer.backends.protocol import TrainRequest

FieldT = TypeVar("FieldT")
LEFT_OPEN = Failure("its outcome could not be recorded, and it left no checkpoint", retriable=True)
JSON_NAMES: dict[type, str] = {dict: "object", list: "array"}

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from rollbus.trainer.art_server.control.local import ArtLocal
    from rollbus.trainer.backends.protocol import TrainTrajectory


def routes(backend: ArtLocal) -> list[tuple[str, str, Callable[[Request], Awaitable[Response]]]]:
    old = _OldRoutes(backend)
    return [
        ("POST", "/register", old.register),
        ("POST", "/_get_step", old.get_step),
        ("POST", "/_prepare_backend_for_training", old.prepare),
        ("POST", "/_train_model", old.train),
        ("POST", "/_log", old.log),
        ("POST", "/_delete_checkpoint_files", old.delete_checkpoints),
        ("POST", "/_delete_checkpoints", old.delete_checkpoints),
        ("POST", "/close", old.close),
    ]


class _OldRoutes:
    def __init__(self, backend: ArtLocal) -> None:
        self._backend = backend
        self._updates: set[asyncio.Future[None]] = set()
        self._unreported: dict[str, tuple[str, list[dict[str, float]]]] = {}
        """By the hash of a call: the update whose outcome could not be recorded, and its metrics. Its client got an
        error and may send the same call again, but a version may exist."""

    async def register(self, request: Request) -> Response:
        self._check_model(wire.read_object(await request.body()))
        return JSONResponse(None)

    async def get_step(self, request: Request) -> Response:
        self._check_model(wire.read_object(await request.body()))
        return JSONResponse(self._backend.session.head())

    async def prepare(self, request: Request) -> Response:
        self._check_model(_require(wire.read_object(await request.body()), "model", dict))
        service = self._backend.service
        return JSONResponse([service.base_url, service.settings.api_key or "default"])

    async def delete_checkpoints(self, request: Request) -> Response:
        """Remove all but those named, the base model, what is served or trained from next, and the parents of these.

        The origin of a removed one stays known.
        """
        body = wire.read_object(await request.body())
        self._check_model(_require(body, "model", dict) if "model" in body else body)
        steps = _require(body, "steps_to_keep", list) if "steps_to_keep" in body else []
        if not all(isinstance(step, int) for step in steps):
            raise RejectedError(f"steps_to_keep must be integers, not {steps!r}")
        async with self._backend.updates_held():
            await asyncio.to_thread(self._backend.session.keeping.keep_only, steps)
        return JSONResponse(None)

    async def log(self, request: Request) -> Response:
        """Take what a client reports, and keep nothing: nothing here reads it, and it holds whole conversations."""
        body = wire.read_object(await request.body())
        self._check_model(_require(body, "model", dict))
        _require(body, "trajectory_groups", list)
        return JSONResponse(None)

    async def close(self, request: Request) -> Response:
        """A client is done; the server goes on serving others."""
        return JSONResponse(None)

    async def train(self, request: Request) -> Response:
        body = wire.read_object(await request.body())
        self._check_model(_require(body, "model", dict))
        service = self._backend.service
        call = read_call(
            _require(body, "trajectory_groups", list),
            lambda messages, tools: render_chat(service.tokenizer, messages, tools),
        )
        admitted = trainable(call, Limits(service.config.max_tokens, service.config.usable_tokens))
        remarks = {"rendered_prompts": call.rendered_prompts}
        remarks |= {f"dropped_{reason}": count for reason, count in admitted.dropped.items()}
        lines: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()
        loop = asyncio.get_running_loop()

        def put_line(line: dict[str, Any] | None) -> None:
            loop.call_soon_threadsafe(lines.put_nowait, line)

        training = self._train(
            admitted.trajectories, body.get("config") or {}, body.get("dev_config") or {}, remarks, put_line
        )
        update = start_task(self._backend.on_art(training), "update of an old client", endless=False)
        self._updates.add(update)
        update.add_done_callback(self._updates.discard)
        return StreamingResponse(_ndjson(lines), media_type="application/x-ndjson")

    async def _train(
        self,
        trajectories: tuple[TrainTrajectory, ...],
        config: dict[str, Any],
        dev_config: dict[str, Any],
        remarks: dict[str, int],
        put_line: Callable[[dict[str, Any] | None], None],
    ) -> None:
        """One update, on ART's loop. The last line holds the new step's metrics, or the error."""

        def report(metrics: dict[str, float]) -> None:
            put_line({**metrics, "num_gradient_steps": int(metrics.get(GRADIENT_STEPS, 0)), **remarks})

        try:
            if not trajectories:
                put_line({"num_gradient_steps": 0, **remarks})
                return
            if config.get(BETA):  # ART no longer has a field for it
                dev_config = {**dev_config, BETA: config[BETA]}
            async with self._backend.one_update:
                await self._update(trajectories, config, dev_config, remarks, report)
        except Exception as error:
            put_line({"error": f"{type(error).__name__}: {error}", "num_gradient_steps": 0})
        finally:
            put_line(None)

    async def _update(
        self,
        trajectories: tuple[TrainTrajectory, ...],
        config: dict[str, Any],
        dev_config: dict[str, Any],
        remarks: dict[str, int],
        report: Callable[[dict[str, float]], None],
    ) -> None:
        """Make one update from the head, serve it at once, and `report` its metrics.

        Order: settle what an earlier one could not record → journal `started`, under a name made up here, since these
        clients send none → update → checkpoint renamed, naming it and holding its result → journal `done`, which moves
        head and serving together → served → retention removes others.

        A call that is repeated after its outcome could not be recorded gets that outcome, and does not train twice.
        """
        if self._backend.session.own is not None and beta_of(dev_config):
            raise RejectedError(f"ART's own update has no {BETA} any more; give kl_penalty_coef in its place")
        session, call_hash = self._backend.session, _hash_call(trajectories, config, dev_config)
        for left_open in session.journal.unfinished():
            await asyncio.to_thread(session.keeping.settle, left_open, LEFT_OPEN)
        earlier, reported = self._unreported.pop(call_hash, ("", []))
        if session.find_result(earlier) is not None:
            for metrics in reported:
                report(metrics)
            return
        reported = []
        name, base = f"client-{uuid.uuid4().hex}", session.head()
        session.journal.started(name, base, serves=True)
        failure = Failure("ART found nothing to train in it", retriable=False)
        request = TrainRequest(name, "", self._backend.settings.model, base, trajectories)
        try:
            async for metrics in session.follow(request, config, dev_config, remarks):
                reported.append(metrics)
                report(metrics)
        except Exception as error:
            failure = Failure(describe_error(error), is_retriable(error))
            raise
        finally:
            self._unreported[call_hash] = name, reported
            await asyncio.to_thread(session.keeping.settle, name, failure)
            del self._unreported[call_hash]
        await asyncio.to_thread(session.keeping.retire, kl_reference(dev_config))

    def _check_model(self, model: dict[str, Any]) -> None:
        if model.get("name") != self._backend.settings.model:
            raise RejectedError(
                f"this server trains {self._backend.settings.model!r}, not {model.get('name')!r}; "
                "one server has one model"
            )


def _hash_call(trajectories: tuple[TrainTrajectory, ...], config: dict[str, Any], dev_config: dict[str, Any]) -> str:
    """Return the hash of what is trained and how: the same for the same call."""
    return hashlib.sha256(repr((trajectories, sorted(config.items()), sorted(dev_config.items()))).encode()).hexdigest()


def _require(body: dict[str, Any], name: str, kind: type[FieldT]) -> FieldT:
    value = body.get(name)
    if not isinstance(value, kind):
        raise RejectedError(f"the field {name} must be a JSON {JSON_NAMES[kind]}, as released ART clients send it")
    return value


async def _ndjson(lines: asyncio.Queue[dict[str, Any] | None]) -> AsyncIterator[str]:
    while (line := await lines.get()) is not None:
        yield json.dumps(line) + "\n"
