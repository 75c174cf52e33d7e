"""`rollbus art-server`: a model and its endpoint in a process of their own, driven over HTTP.

Control routes on one port (those of `wire`, ART's old ones, both health routes), the OpenAI-compatible endpoint on
another and, for clients that know only one address, under /v1 here too. An update belongs to the server, not to the
connection that asked for it: a client that goes away changes nothing and finds the result when it comes back.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import socket
import uuid
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rollbus.runtime.health.heart import Heart, beating
from rollbus.runtime.http.guard import (
    Door,
    ErrorAnswer,
    FindPrincipal,
    RefusedError,
    RequestHead,
    as_json,
    names_of,
    token_admits,
)
from rollbus.runtime.http.listener import open_listener
from rollbus.runtime.machine import LOCAL_NAMES
from rollbus.schemas.errors import ConfigurationError, RejectedError, RollbusError, describe_error, is_retriable
from rollbus.trainer.art_server.control import environment as art_environment
from rollbus.trainer.art_server.model.inert_files import require_inert
from rollbus.trainer.backends import wire
from rollbus.trainer.backends.model_settings import ServiceSettings
from rollbus.trainer.backends.protocol import TERMINAL_STATES, TrainRequest

if TYPE_CHECKING:
    import uvicorn
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import Route

    from rollbus.trainer.art_server.control.local import ArtLocal
    from rollbus.trainer.art_server.hosted.model import HostedModel

logger = logging.getLogger(__name__)

CLIENT_GONE = 499
"""For an answer without a client; as nginx has it."""
HEALTH_PATHS = (wire.HEALTH, "/healthcheck")
MAX_BATCH_BYTES = 512 << 20
"""Of one request: a batch of 500 sequences of 60,000 tokens is half as large."""


def serve(settings: ServiceSettings, control_port: int, heart: Heart | None = None) -> None:
    """Run until SIGTERM or SIGINT. A running update ends first; one while it starts ends it at once.

    ConfigurationError if a port is taken or the base model cannot be used. Importing torch takes about 10 s, so the
    control port is claimed before; it answers once everything else does.
    """
    check_base_model(settings.base_model, has_weights=settings.tinker is None)
    listener = open_listener(
        settings.host,
        control_port,
        name="the art-server",
        host_setting="`art_server: host:`",
        port_setting="`stack: art_port:`",
    )
    _require_token(settings)
    art_environment.protect()
    art_environment.leave_out_unused()
    with _ended_by_sigint():
        asyncio.run(_serve(settings, listener, heart))


def _require_token(settings: ServiceSettings) -> None:
    """Raise ConfigurationError for ports that would be open to everybody, unless the settings want them on loopback."""
    if settings.api_key is not None:
        return
    if not settings.insecure or settings.host not in LOCAL_NAMES:
        raise ConfigurationError(
            f"the ports on {settings.host} would be open to everybody; set `art_server: token:`, or on loopback "
            "`insecure: true`"
        )


@contextlib.contextmanager
def _ended_by_sigint() -> Iterator[None]:
    """End by SIGINT as by SIGTERM during the start: an import in a thread of its own gets no KeyboardInterrupt.

    A handler, not SIG_DFL: a library of ART's sets its own, which calls only an earlier handler.
    """

    def end(number: int, frame: object) -> None:
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    before = signal.signal(signal.SIGINT, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def check_base_model(directory: Path, *, has_weights: bool = True) -> None:
    """ConfigurationError early, before the slow imports."""
    require_inert(directory)
    needed = ("config.json", "tokenizer.json") if has_weights else ("tokenizer.json",)
    missing = [name for name in needed if not (directory / name).exists()]
    if has_weights and not any(
        (directory / name).exists() for name in ("model.safetensors", "model.safetensors.index.json")
    ):
        missing.append("model.safetensors")
    if missing:
        raise ConfigurationError(
            f"base model {directory} lacks {', '.join(missing)}; give a directory in Hugging Face layout (nothing is "
            "fetched from a hub: download the model first)"
        )


async def _serve(settings: ServiceSettings, listener: socket.socket, heart: Heart | None) -> None:
    from rollbus.trainer.art_server.endpoint.http_server import quiet_server

    backend = _make_backend(settings)
    try:
        await backend.start()
        server = quiet_server(
            build_control_app(backend), control_door(settings.api_key, settings.host, settings.find_principal)
        )
        url = (await backend.capabilities()).inference_url
        logger.info("control on %s:%s, model on %s", *listener.getsockname()[:2], url)
        async with beating(heart, backend.report):
            await _serve_until_stopped(server, listener)
    finally:
        await backend.close()


def _make_backend(settings: ServiceSettings) -> ArtLocal | HostedModel:
    """Return what holds the model, not yet started: this process, or a service elsewhere."""
    if settings.tinker is None:
        from rollbus.trainer.art_server.control.local import ArtLocal

        return ArtLocal(settings)
    from rollbus.trainer.art_server.hosted.model import HostedModel
    from rollbus.trainer.backends.tinker.sdk import SdkService

    return HostedModel(settings, SdkService(settings.tinker))


async def _serve_until_stopped(server: uvicorn.Server, listener: socket.socket) -> None:
    """Serve until SIGTERM or SIGINT; uvicorn's own handling would end the process before the backend is closed."""

    def stop() -> None:
        server.should_exit = True

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    server.capture_signals = contextlib.nullcontext  # type: ignore[method-assign,assignment]
    await server.serve(sockets=[listener])


def control_door(token: str | None, host: str = "127.0.0.1", find_principal: FindPrincipal | None = None) -> Door:
    """What the control port asks of a request: the owner's token; without one everybody may train."""
    admit = token_admits(token, open_paths=HEALTH_PATHS, find_principal=find_principal)
    return Door(admit, MAX_BATCH_BYTES, names_of(host), {"application/json", wire.BATCH_TYPE}, _describe)


def build_control_app(backend: ArtLocal | HostedModel) -> Starlette:
    """Every route of the control port, around a started backend; ART's clients are answered where the model is here."""
    from starlette.applications import Starlette
    from starlette.routing import Mount

    from rollbus.trainer.art_server.endpoint.endpoint import build_app
    from rollbus.trainer.art_server.hosted.model import HostedModel

    if isinstance(backend, HostedModel):
        return Starlette(routes=[*control_routes(backend), Mount("/", build_app(backend.served))])
    from rollbus.trainer.art_server.control import old_routes as art_old_routes
    from rollbus.trainer.art_server.learner.torch_service import TorchService

    service = backend.service
    model_routes = [Mount("/", build_app(service.served))] if isinstance(service, TorchService) else []
    return Starlette(
        routes=[
            *control_routes(backend),
            *_make_routes(art_old_routes.routes(backend)),
            *model_routes,
        ]
    )


def control_routes(backend: ArtLocal | HostedModel) -> list[Route]:
    """The routes of `wire` around a backend, and both health routes."""
    from starlette.routing import Route

    control = _Control(backend)
    handlers: list[tuple[str, str, Handler]] = [
        ("GET", wire.CAPABILITIES, control.capabilities),
        ("POST", wire.BATCHES, control.submit),
        ("PUT", wire.PREPARED, control.prepare),
        ("POST", wire.PREPARED, control.begin),
        ("GET", wire.BATCH, control.status),
        ("POST", wire.CANCEL, control.cancel),
        ("GET", wire.RESULT, control.result),
        ("GET", wire.VERSIONS, control.versions),
        ("POST", wire.SERVING, control.promote),
    ]
    health = [Route(path, control.health) for path in HEALTH_PATHS]
    return [*health, *_make_routes(handlers)]


class _Control:
    def __init__(self, backend: ArtLocal | HostedModel) -> None:
        self._backend = backend
        self._prepared: tuple[str, TrainRequest] | None = None
        """The batch that was sent ahead last, and its unique name."""

    async def health(self, request: Request) -> Response:
        healthy = await self._backend.is_healthy()
        return _respond({"status": "ok" if healthy else "not taking batches"}, 200 if healthy else 503)

    async def capabilities(self, request: Request) -> Response:
        return _respond(wire.to_json(await self._backend.capabilities()) | {"backend": "art-server", "prepares": True})

    async def submit(self, request: Request) -> Response:
        train_request = wire.request_from_bytes(await request.body())
        return _respond({"batch_hash": await self._backend.submit(train_request)}, 202)

    async def prepare(self, request: Request) -> Response:
        name, train_request = uuid.uuid4().hex, wire.request_from_bytes(await request.body())
        self._prepared = name, train_request
        return _respond({"prepared": name})

    async def begin(self, request: Request) -> Response:
        body = wire.read_object(await request.body())
        base_version = body.get("base_version")
        if not isinstance(base_version, int) or isinstance(base_version, bool):
            return _respond(wire.error_to_json("base_version must be an integer", retriable=False), 400)
        if self._prepared is None or self._prepared[0] != body.get("prepared"):
            raise RejectedError("that batch is not here, or no longer; send it whole")
        (_, train_request), self._prepared = self._prepared, None
        return _respond(
            {"batch_hash": await self._backend.submit(replace(train_request, base_version=base_version))}, 202
        )

    async def status(self, request: Request) -> Response:
        batch_hash = request.path_params["batch_hash"]
        wait_s = _parse_wait(request.query_params.get("wait_s", "0"))
        status = await self._backend.status(batch_hash)
        if wait_s > 0 and status.state not in TERMINAL_STATES:
            await self._backend.wait_ended(batch_hash, wait_s)
            status = await self._backend.status(batch_hash)
        body = wire.to_json(status)
        if status.state == "completed" and "result" in request.query_params:
            result = await self._backend.journal(batch_hash)
            body |= {"result": None if result is None else wire.to_json(result)}
        return _respond(body)

    async def cancel(self, request: Request) -> Response:
        return _respond(wire.to_json(await self._backend.cancel(request.path_params["batch_hash"])))

    async def result(self, request: Request) -> Response:
        result = await self._backend.journal(request.path_params["batch_hash"])
        return _respond({"result": None if result is None else wire.to_json(result)})

    async def versions(self, request: Request) -> Response:
        return _respond(wire.to_json(await self._backend.versions()))

    async def promote(self, request: Request) -> Response:
        body = wire.read_object(await request.body())
        version, rollback = body.get("version"), body.get("rollback", False)
        if not isinstance(version, int) or isinstance(version, bool) or not isinstance(rollback, bool):
            return _respond(
                wire.error_to_json("version must be an integer and rollback true or false", retriable=False), 400
            )
        await self._backend.promote(version, rollback=rollback)
        return _respond({"serving": version})


Handler = Callable[["Request"], Awaitable["Response"]]


def _make_routes(handlers: Sequence[tuple[str, str, Handler]]) -> list[Route]:
    from starlette.routing import Route

    return [Route(path, _answering(handler), methods=[method]) for method, path, handler in handlers]


def _describe(refused: RefusedError, head: RequestHead) -> ErrorAnswer:
    return as_json(wire.error_to_json(refused.message, retriable=refused.status == 503))


def _answering(handler: Handler) -> Handler:
    """Answer every failure as JSON that says whether trying again can help."""
    from starlette.requests import ClientDisconnect

    async def answer(request: Request) -> Response:
        try:
            return await handler(request)
        except ClientDisconnect:
            return _respond({}, CLIENT_GONE)
        except RollbusError as error:
            return _respond(wire.error_to_json(str(error), retriable=error.retriable), 503 if error.retriable else 409)
        except Exception as error:
            logger.exception("%s %s failed", request.method, request.url.path)
            retriable = is_retriable(error)
            return _respond(wire.error_to_json(describe_error(error), retriable=retriable), 503 if retriable else 500)

    return answer


def _parse_wait(text: str) -> float:
    try:
        return min(float(text), wire.LONGEST_WAIT_S)
    except ValueError as error:
        raise RejectedError(f"wait_s must be a number of seconds, not {text!r}") from error


def _respond(content: Any, status: int = 200) -> Response:
    """Answer with JSON as this project's client reads it: a figure that a service reports may not be finite."""
    from starlette.responses import Response

    body = json.dumps(content, ensure_ascii=False, separators=(",", ":"))
    return Response(body, status_code=status, media_type="application/json")
