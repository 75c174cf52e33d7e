"""The proxy's routes: the calls of a model are recorded, everything else passes, and episodes can be opened by HTTP.

POST /rollbus/episodes              {"task": …, and what else an episode has} → id, base_url
POST /rollbus/episodes/ID/reward    {"value": …, "name"?, "key"?}
POST /rollbus/episodes/ID/end       {"stop_reason"?}
POST /rollbus/feedback              {"episode", "alias" or "conversation": …, "value" or "signal": …, "name"?, "key"?},
                                    at any time, for any episode
*    /rollbus/episodes/ID/v1/…      the server's API, recorded into that episode
*    /v1/…                          the server's API
GET  /rollbus/health                what was recorded, delivered and lost
GET  /rollbus/metrics               the same, as Prometheus reads it
"""

import asyncio
import logging
import math
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from types import UnionType
from typing import Any, TypeVar, get_args
from urllib.parse import unquote

import httpx
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from rollbus.producers.capture.answer_tap import AnswerTap
from rollbus.producers.capture.attributes import parse
from rollbus.producers.capture.call import Capture, RecordedCall, RefusedByKind
from rollbus.producers.capture.endpoints import find_endpoint
from rollbus.producers.episode.episode import Episode
from rollbus.producers.episode.headers import EPISODE_HEADER, FUNCTION_HEADER, NOT_SAMPLED, STARTED_HEADER
from rollbus.producers.episode.rewards import complete_report
from rollbus.producers.proxy import relay
from rollbus.producers.proxy.episodes import Desk, Episodes, UnknownEpisodeError
from rollbus.producers.recorder import Recorder
from rollbus.producers.sending.counters import CONTENT_TYPE, prometheus_text
from rollbus.producers.turns.answer import count_of, text_of
from rollbus.runtime.health.heart import Report
from rollbus.runtime.http.guard import JSON_TYPES, Door, FindPrincipal, RequestHead, names_of, token_admits
from rollbus.schemas.principals import Grant
from rollbus.schemas.records.events import StopReason

logger = logging.getLogger(__name__)
Result = TypeVar("Result")
NOT_DELIVERED = "not_delivered"
"""The reason of a turn whose program has hung up before the answer."""
METHODS = ["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"]
HOP_BY_HOP = frozenset(
    {"connection", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade", "host", "content-length",
     "proxy-authorization", "proxy-authenticate", "proxy-connection", "expect"}
)  # fmt: skip
"""Headers that belong to one connection; `content-encoding` goes too, as bodies are unpacked here."""
EPISODE_FIELDS: Mapping[str, type | UnionType] = {
    "task": str,
    "example_id": str | int,
    "group_id": str | int,
    "group_size": int,
    "labels": dict,
    "agent": str,
    "conversation": str,
    "message": str,
}
REWARD_FIELDS: Mapping[str, type | UnionType] = {"name": str, "key": str | int, "comment": str, "signal": str}
"""What may be sent to open an episode, and in addition to a reward's value."""
_KINDS: Mapping[type | UnionType, str] = {
    str: "text",
    int: "a whole number",
    str | int: "text or a whole number",
    dict: "an object",
}
MAX_BODY_BYTES = 64 << 20
"""Of a request; a model server takes half as much."""
BODY_TYPES = JSON_TYPES | {"multipart/form-data", "application/octet-stream"}
"""Files are uploaded to a server's API, too."""


class HungUpError(Exception):
    """The program has left before the answer."""


@dataclass(slots=True)
class Proxy:
    """What the routes share."""

    recorder: Recorder
    upstream: str
    """The server's address up to and with `/v1`."""
    http: httpx.AsyncClient
    task: str | None = None
    mode: str = "force"
    token: str | None = None
    """What programs bring as their key, or in `Proxy-Authorization`; None asks for none."""
    upstream_key: str | None = None
    """The server's key, sent in place of the token: of a server of this stack, the token itself."""
    address: str = "http://127.0.0.1:8001"
    """Where programs reach this proxy."""
    find_principal: FindPrincipal | None = None
    """Knows the tokens of principals."""
    record_as: Callable[[str], Recorder] | None = None
    """Makes the recorder that signs with a principal's token; None records everybody alike."""
    refused_by_kind: RefusedByKind = field(default_factory=dict)
    desk: Desk = field(init=False)
    """For requests with the owner's token."""
    _desks: dict[str, Desk] = field(init=False, default_factory=dict)
    """By the head of a principal's token."""

    def __post_init__(self) -> None:
        """Open no episode yet."""
        self.desk = Desk(self.recorder, Episodes(self.recorder, self.task))

    def desk_of(self, headers: Mapping[str, str]) -> Desk:
        """Return where a request is recorded: with its principal, else with the owner."""
        token = _token_of(headers)
        principal = self.find_principal(token) if self.find_principal is not None and token else None
        if principal is None or self.record_as is None:
            return self.desk
        if principal.head not in self._desks:
            recorder = self.record_as(token)
            self._desks[principal.head] = Desk(recorder, Episodes(recorder, self.task))
        return self._desks[principal.head]

    @property
    def counters(self) -> Mapping[str, int]:
        """What all recorders have counted."""
        total: Counter[str] = Counter()
        for desk in (self.desk, *self._desks.values()):
            total.update(desk.recorder.counters)
        return total

    def report(self) -> Report:
        """Say what was recorded, and whether the broker takes it."""
        counters = self.counters
        queued, trouble = counters.get("events_queued", 0), None
        if self.recorder.healthy is False:
            trouble = f"the broker takes no events, and {queued} wait"
        finished_events = sum(
            count for name, count in counters.items() if name not in ("events_queued", "bytes_queued")
        )
        return Report(holds=(f"proxy of {self.upstream}",), work=finished_events, is_behind=queued > 0, trouble=trouble)

    def app(self) -> Starlette:
        """Return the application; it closes its connections and ends its episodes when it stops."""
        prefix = "/rollbus/episodes/{episode}"
        return Starlette(
            routes=[
                Route("/rollbus/health", self.health),
                Route("/rollbus/metrics", self.metrics),
                Route("/rollbus/episodes", self.open, methods=["POST"]),
                Route(f"{prefix}/reward", self.reward, methods=["POST"]),
                Route(f"{prefix}/end", self.end, methods=["POST"]),
                Route("/rollbus/feedback", self.feedback, methods=["POST"]),
                Route(f"{prefix}/v1/{{path:path}}", self.forward, methods=METHODS),
                Route("/v1/{path:path}", self.forward, methods=METHODS),
            ],
            exception_handlers={
                HungUpError: _answer_hang_up,
                UnknownEpisodeError: _not_found,
                httpx.TransportError: _bad_gateway,
                ValueError: _bad,
            },
            lifespan=self._lifespan,
        )

    @asynccontextmanager
    async def _lifespan(self, app: Starlette) -> AsyncIterator[None]:
        yield
        await self.http.aclose()
        await asyncio.gather(*(desk.close() for desk in (self.desk, *self._desks.values())))

    async def health(self, request: Request) -> Response:
        """Say what was recorded, delivered and lost."""
        return JSONResponse({"healthy": self.recorder.healthy, "counters": dict(self.counters)})

    async def metrics(self, request: Request) -> Response:
        """Say the same to Prometheus."""
        recorders = [desk.recorder for desk in (self.desk, *self._desks.values())]
        counters = {**self.counters, "bytes_queued": sum(recorder.bytes_queued for recorder in recorders)}
        text = prometheus_text(counters, healthy=self.recorder.healthy, producer=self.recorder.settings.producer)
        return Response(text, media_type=CONTENT_TYPE)

    async def open(self, request: Request) -> Response:
        """Open an episode."""
        fields = await _json(request)
        if not isinstance(fields.get("task"), str):
            raise ValueError('an episode needs a task: send {"task": "…"}')
        if unknown := sorted(set(fields) - set(EPISODE_FIELDS)):
            raise ValueError(f"unknown fields {', '.join(unknown)}; an episode has {', '.join(sorted(EPISODE_FIELDS))}")
        _check(fields, EPISODE_FIELDS)
        episode = self.desk_of(request.headers).episodes.open(**fields)
        base_url = f"{self.address}/rollbus/episodes/{episode.id}/v1"
        return JSONResponse({"id": episode.id, "base_url": base_url}, status_code=201)

    async def reward(self, request: Request) -> Response:
        """Report what an open episode is worth."""
        value, options = _reward_of(await _json(request))
        episodes = self.desk_of(request.headers).episodes
        event_id = episodes.get(request.path_params["episode"]).reward(value, **options)
        return JSONResponse({"event_id": event_id}, status_code=202)

    async def feedback(self, request: Request) -> Response:
        """Report what an episode was worth. It need not be open here, and it is not checked that it exists."""
        fields = await _json(request)
        target = {name: fields.pop(name) for name in ("episode", "alias", "conversation") if name in fields}
        if len(target) != 1 or not all(isinstance(name, str) and name for name in target.values()):
            raise ValueError(
                'feedback is about one episode: send {"episode": "ID"}, {"alias": "…"} or {"conversation": "…"}'
            )
        value, options = _reward_of(fields)
        event_id = self.desk_of(request.headers).recorder.feedback(reward=value, **target, **options)
        return JSONResponse({"event_id": event_id}, status_code=202)

    async def end(self, request: Request) -> Response:
        """End an episode."""
        fields = await _json(request)
        stop_reason = fields.get("stop_reason", "completed")
        if stop_reason not in get_args(StopReason):
            raise ValueError(f"stop_reason is {stop_reason!r}; choose one of {', '.join(get_args(StopReason))}")
        self.desk_of(request.headers).episodes.close(request.path_params["episode"]).end(stop_reason)
        return Response(status_code=204)

    async def forward(self, request: Request) -> Response:
        """Pass a request on; record it where it is a chat completion of an episode."""
        body, desk = await request.body(), self.desk_of(request.headers)
        with ExitStack() as scope:
            episode = scope.enter_context(desk.episodes.of_request(request.headers, request.path_params.get("episode")))
            call = self._call(request, desk.recorder, episode, body)
            if call is None:
                return await self._pass(request, body)
            return await self._record(request, desk, call, scope)

    def _call(self, request: Request, recorder: Recorder, episode: Episode | None, body: bytes) -> RecordedCall | None:
        endpoint = find_endpoint(f"/{_path_of(request)}")
        if episode is None or request.method != "POST" or endpoint is None or endpoint.server != "/":
            return None
        try:
            arguments = parse(body)
        except ValueError:
            return None  # the server's answer says what is wrong with it
        if not isinstance(arguments, dict):
            return None
        function = unquote(request.headers.get(FUNCTION_HEADER, "")) or None
        capture = Capture(recorder.outbox, recorder.episodes, episode, function, self.mode, True, self.refused_by_kind)
        return capture.begin(arguments, endpoint.surface, self.upstream, body)

    async def _record(self, request: Request, desk: Desk, call: RecordedCall, scope: ExitStack) -> Response:
        async def upstream(body: bytes) -> httpx.Response:
            return await self._send(request, body)

        response = await _unless_gone(request, call, relay.send(call, upstream))
        tap = AnswerTap(call, response.headers) if response.is_success else None
        if tap is not None and tap.is_stream:
            rest = scope.pop_all()
            rest.callback(tap.abandon)
            events = _pass_on(relay.stream_answer(tap, response), desk, rest)
            return _Stream(events, response, rest)
        body = await _unless_gone(request, call, response.aread())
        if tap is not None:
            body = tap.feed(body) + tap.end()
            await desk.flush()
        return _with_headers(Response(body, response.status_code), response)

    async def _pass(self, request: Request, body: bytes) -> Response:
        response = await self._send(request, body)
        return _Stream(response.aiter_bytes(), response, ExitStack())

    async def _send(self, request: Request, body: bytes) -> httpx.Response:
        ours = {EPISODE_HEADER, STARTED_HEADER, FUNCTION_HEADER, *NOT_SAMPLED, "accept-encoding"}
        dropped_headers = ours | _hop_by_hop(",".join(request.headers.getlist("connection")))
        headers = [(name, value) for name, value in request.headers.items() if name not in dropped_headers]
        headers = self._with_key(headers)
        path, query = _path_of(request), request.url.query
        url = f"{self.upstream}/{path}?{query}" if query else f"{self.upstream}/{path}"
        self.http.cookies.clear()  # what the server set for one program is not another's to send
        upstream_request = self.http.build_request(request.method, url, headers=headers, content=body)
        return await self.http.send(upstream_request, stream=True)

    def door(self, host: str) -> Door:
        """What the proxy asks of a request."""
        by_key = token_admits(
            self.token, open_paths=("/rollbus/health",), find_principal=self.find_principal, needs=_needs
        )

        def admit(head: RequestHead) -> None:
            authorization = head.headers.get("proxy-authorization", "")
            by_key(replace(head, headers={**head.headers, "authorization": authorization}) if authorization else head)

        return Door(admit, MAX_BODY_BYTES, names_of(host), media_types=BODY_TYPES)

    def _with_key(self, headers: list[tuple[str, str]]) -> list[tuple[str, str]]:
        """Put the server's key where a program has sent the token, which is not the server's to see in any header."""
        token = _token_of(dict(headers))
        is_ours = self.find_principal is not None and self.find_principal(token) is not None
        tokens = [self.token, *([token] if is_ours else [])]
        token_headers = [(name, value) for name, value in headers if any(token and token in value for token in tokens)]
        rest = [header for header in headers if header not in token_headers]
        if self.upstream_key is None or "authorization" not in dict(token_headers):
            return rest
        return [*rest, ("authorization", f"Bearer {self.upstream_key}")]


async def _pass_on(events: AsyncIterator[bytes], desk: Desk, scope: ExitStack) -> AsyncIterator[bytes]:
    """Pass a stream on; the request's part of the episode closes with it, however it ends."""
    with scope:
        async for event in events:
            yield event
    await desk.flush()


def _token_of(headers: Mapping[str, str]) -> str:
    """Return the token that a program has sent, to the proxy itself or in place of the server's key."""
    for name in ("proxy-authorization", "authorization"):
        scheme, _, token = headers.get(name, "").partition(" ")
        if scheme.lower() == "bearer" and token.strip():
            return token.strip()
    return ""


def _needs(head: RequestHead) -> Grant:
    """Return what a principal must be allowed: a reward is not part of recording."""
    is_reward = head.path == "/rollbus/feedback" or (
        head.path.startswith("/rollbus/episodes/") and head.path.endswith("/reward") and "/v1/" not in head.path
    )
    return "feedback" if is_reward else "record"


async def _unless_gone(request: Request, call: RecordedCall, work: Coroutine[Any, Any, Result]) -> Result:
    """Return what the server answers; where the program hangs up before, stop the server and raise HungUpError.

    A program that waits no longer asks again: an answer that nobody received would be a second turn for one.
    """
    working = asyncio.ensure_future(work)
    hang_up = asyncio.ensure_future(_hung_up(request))
    try:
        await asyncio.wait({working, hang_up}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            call.record_without_answer(NOT_DELIVERED)
            raise HungUpError
        return working.result()
    except httpx.HTTPError as error:
        call.on_error(error)
        raise
    finally:
        for task in (working, hang_up):
            task.cancel()
        await asyncio.gather(working, hang_up, return_exceptions=True)


async def _hung_up(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        continue


def _path_of(request: Request) -> str:
    return normalise(request.scope["raw_path"].decode("latin-1").partition("/v1/")[2], request.path_params["path"])


def normalise(raw: str, decoded: str) -> str:
    """Return a path as it is sent on; ValueError for one that leaves /v1, or that can be read in two ways.

    A server may decode a path once more, take a backslash for a slash, or leave out what follows a semicolon.
    """
    tail = unquote(raw)
    parts = (part.partition(";")[0] for part in unquote(tail).replace("\\", "/").split("/"))
    if tail != decoded or not tail.isprintable() or any(part in (".", "..") for part in parts):
        raise ValueError("the path leaves /v1, or can be read in two ways")
    return "/".join(part for part in raw.split("/") if part)


def _hop_by_hop(connection: str) -> frozenset[str]:
    """Return the names that belong to one connection: the usual ones, and those that its `Connection` headers name."""
    return HOP_BY_HOP | {name.strip().lower() for name in connection.split(",")}


class _Stream(StreamingResponse):
    """A stream that closes its upstream at its end, also if its reader left before it began."""

    def __init__(self, content: AsyncIterator[bytes], upstream: httpx.Response, rest: ExitStack) -> None:
        super().__init__(content, upstream.status_code)
        _with_headers(self, upstream)
        self._upstream, self._rest = upstream, rest

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._rest.close()
            await self._upstream.aclose()


def _with_headers(response: Response, upstream: httpx.Response) -> Response:
    """Return the response with the server's headers, each as often as it came: cookies do not share one."""
    dropped_headers = _hop_by_hop(upstream.headers.get("connection", "")) | {"content-encoding"}
    for name, value in upstream.headers.multi_items():
        if name not in dropped_headers:
            response.headers.append(name, value)
    return response


async def _json(request: Request) -> dict[str, Any]:
    body = await request.body()
    fields = parse(body) if body else {}
    if not isinstance(fields, dict):
        raise ValueError("send a JSON object")
    return fields


def _reward_of(fields: Mapping[str, Any]) -> tuple[float | None, dict[str, Any]]:
    """Return a reward's value, and what else is said of it; a signal of what the user did next has no value."""
    value, comment = fields.get("value"), fields.get("comment")
    if "signal" in fields or (value is None and isinstance(comment, str)):
        rest = _rest_of_reward(fields)
        complete_report({"name": "", "signal": "", "retracted": False, "value": value, **fields}, comment)
        return None, rest
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise ValueError('a reward needs a number: send {"value": 1.0}, or what the user said as {"comment": "…"}')
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise ValueError(f"a reward is finite, not {number}")
    return number, _rest_of_reward(fields)


def _rest_of_reward(fields: Mapping[str, Any]) -> dict[str, Any]:
    if unknown := sorted(set(fields) - {"value", *REWARD_FIELDS}):
        raise ValueError(f"unknown fields {', '.join(unknown)}; a reward has value, {', '.join(sorted(REWARD_FIELDS))}")
    _check(fields, REWARD_FIELDS)
    return {name: fields[name] for name in REWARD_FIELDS if fields.get(name) is not None}


def _check(fields: Mapping[str, Any], types: Mapping[str, type | UnionType]) -> None:
    """Refuse values that could not be written: the program would not hear of them later."""
    for name, kind in types.items():
        value = fields.get(name)
        if value is not None and (not isinstance(value, kind) or isinstance(value, bool)):
            raise ValueError(f"{name} is {value!r}; it must be {_KINDS[kind]}")
        if kind is int and value is not None and count_of(value) is None:
            raise ValueError(f"{name} is {value}; it must be a whole number of 64 bits")


async def _bad(request: Request, error: Exception) -> Response:
    return _error(400, str(error))


async def _not_found(request: Request, error: Exception) -> Response:
    return _error(404, str(error))


async def _answer_hang_up(request: Request, error: Exception) -> Response:
    return Response(status_code=499)  # its client has gone


async def _bad_gateway(request: Request, error: Exception) -> Response:
    logger.warning("the model server does not answer: %r", error)
    return _error(502, f"the model server does not answer: {type(error).__name__}: {error}")


def _error(status: int, message: str) -> Response:
    """Return an error in the form that OpenAI's clients read."""
    text = text_of(message)  # it may name what the program has sent
    return JSONResponse({"error": {"message": text, "type": "rollbus_proxy"}}, status_code=status)
