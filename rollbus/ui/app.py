"""The page's web application: files, answers as JSON, and a stream of events for new data.

    GET /                    the page
    GET /static/…            its files, all of them shipped with the package
    GET /api/ask/NAME?run=…  a question's answer: {"columns": […], "rows": […]}
    GET /api/lag             every consumer group's lag, from Kafka: {"groups": […]}, with an "error" while it is away
    GET /api/health          what `rollbus status --json` says: {"verdict": {…}, "funnels": […], …}
    POST /api/feedback       a reward for an episode, into the log, with the owner's token or one that may report
    POST /api/data-sets      a trajectory into a data set, or out of it, with the owner's token alone
    GET /api/live?run=…      server-sent events: `pulse` when something was written, `down` while ClickHouse is away

It serves this machine only, under a name of this machine. The page's own token reads and writes nothing. Its headers
forbid the browser to load anything from elsewhere.

The address that the command prints brings the page's token behind a `#`, which no browser sends. The page keeps it in
the storage of its origin. A cookie would go to every port of this machine, also to another user's program.
"""

import asyncio
import hmac
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rollbus.consumers.clickhouse.questions.output import make_plain
from rollbus.consumers.clickhouse.questions.runs import UnknownRunError
from rollbus.runtime.http.guard import Door, FindPrincipal, RefusedError, RequestHead, same, token_in
from rollbus.schemas.errors import ConfigurationError, RejectedError, RollbusError
from rollbus.ui.acting import OPERATOR, Acting
from rollbus.ui.asking import Asking
from rollbus.ui.token_text import Texts

if TYPE_CHECKING:
    from rollbus.health.lag import LagRow
    from rollbus.health.status import StatusWatch

Lags = Callable[[], Awaitable[Sequence["LagRow"]]]
STATIC = Path(__file__).parent / "static"
FEEDBACK, DATA_SETS = "/api/feedback", "/api/data-sets"
WRITING = (FEEDBACK, DATA_SETS)
FORM_BYTES = 16 * 1024
PULSE_S = 2.0
"""Between two checks for new data; a sink lingers for one second."""
HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-cache",
}


def make_app(
    asking: Asking,
    *,
    namespace: str,
    texts: Texts | None = None,
    lags: Lags | None = None,
    health: "StatusWatch | None" = None,
    acting: Acting | None = None,
    find_principal: FindPrincipal | None = None,
    pulse_s: float = PULSE_S,
) -> Starlette:
    """Return the application; it closes what it is given when it ends. `lags` asks Kafka for consumer groups."""
    api = _Api(asking, namespace, texts, lags, health, acting, find_principal, pulse_s)
    return Starlette(
        routes=[
            Route("/", _send_page),
            Route("/api/ask/{name}", api.ask),
            Route("/api/lag", api.show_lag),
            Route("/api/health", api.show_health),
            *(Route(path, api.act, methods=["POST"]) for path in WRITING),
            Route("/api/live", api.stream),
            Mount("/static", StaticFiles(directory=STATIC)),
        ],
        middleware=[Middleware(_Headers)],
        lifespan=api.close_at_end,
    )


async def _send_page(_: Request) -> Response:
    return FileResponse(STATIC / "index.html")


@dataclass(frozen=True, slots=True)
class _Api:
    """The answers below /api."""

    asking: Asking
    namespace: str
    texts: Texts | None
    lags: Lags | None
    health: "StatusWatch | None"
    acting: Acting | None
    find_principal: FindPrincipal | None
    pulse_s: float

    async def ask(self, request: Request) -> JSONResponse:
        try:
            columns, rows = await run_in_threadpool(self.asking.ask, request.path_params["name"], request.query_params)
        except UnknownRunError as error:
            return JSONResponse({"error": str(error), "unknown": "run"}, status_code=404)
        except (ConfigurationError, RejectedError) as error:
            return JSONResponse({"error": str(error)}, status_code=400)
        except RollbusError as error:
            return JSONResponse({"error": str(error)}, status_code=503)
        if self.texts is not None and "token_ids" in columns:
            columns, rows = await run_in_threadpool(add_texts, columns, rows, self.texts)
        return JSONResponse({"columns": columns, "rows": rows, "namespace": self.namespace})

    async def show_lag(self, _: Request) -> JSONResponse:
        try:
            groups = [] if self.lags is None else await self.lags()
        except RollbusError as error:
            return JSONResponse({"groups": [], "error": str(error)})
        return JSONResponse({"groups": [asdict(group) for group in groups]})

    async def show_health(self, _: Request) -> JSONResponse:
        return JSONResponse({} if self.health is None else make_plain((await self.health.ask()).as_json()))

    async def act(self, request: Request) -> JSONResponse:
        try:
            values = json.loads(await request.body())
            if self.acting is None or not isinstance(values, dict):
                raise ConfigurationError("send an object in JSON")
            if request.url.path == FEEDBACK:
                token = token_in(request.headers.get("authorization", ""))
                principal = self.find_principal(token) if self.find_principal is not None else None
                name = OPERATOR if principal is None else principal.name
                return JSONResponse({"event_id": await run_in_threadpool(self.acting.report, values, name)})
            await self.acting.change_member(values)
        except (ConfigurationError, ValueError) as error:
            return JSONResponse({"error": str(error)}, status_code=400)
        except RollbusError as error:
            return JSONResponse({"error": str(error)}, status_code=503)
        return JSONResponse({})

    async def stream(self, request: Request) -> StreamingResponse:
        values = {name: value for name, value in request.query_params.items() if name != "token"}
        stream = stream_pulses(self.asking, values, self.pulse_s)
        return StreamingResponse(stream, media_type="text/event-stream")

    @asynccontextmanager
    async def close_at_end(self, _: Starlette) -> AsyncIterator[None]:
        yield
        if self.health is not None:
            await self.health.close()
        if self.acting is not None:
            await run_in_threadpool(self.acting.close)


def page_door(token: str | None, owner: str | None = None, find_principal: FindPrincipal | None = None) -> Door:
    """What the page asks of a request: its token as a bearer, of an event stream in the address. To write, the owner's;
    for feedback also a principal's that may report.

    The page's own files are open: they are the same for everybody. Without an owner's token nothing can be written.
    """

    def admit(head: RequestHead) -> int:
        if head.path == "/" or head.path.startswith("/static/"):
            return 0
        if head.method != "POST" or head.path not in WRITING:
            given = head.bearer() or (head.query.get("token", "") if head.path == "/api/live" else "")
            if token is not None and not same(given, token):
                raise RefusedError(401, "open the address that `rollbus ui` has printed")
            return 0
        if owner is None:
            raise RefusedError(403, "this stack has no token, so the page writes nothing; start it with `rollbus up`")
        principal = find_principal(head.bearer()) if find_principal is not None and head.path == FEEDBACK else None
        may_report = principal is not None and "feedback" in principal.may
        if not may_report and not same(head.bearer(), owner):
            or_reporter = ", or one that may report feedback" if head.path == FEEDBACK else ""
            raise RefusedError(403, f"this is not the owner's token{or_reporter}")
        return FORM_BYTES

    return Door(
        admit,
        FORM_BYTES,
        describe=lambda refused, head: ({"content-type": "text/plain"}, f"{refused.message}\n".encode()),
    )


def page_token(token: str) -> str:
    """Return the page's own token, the same at each start; who learns it cannot train."""
    return hmac.new(token.encode(), b"page", "sha256").hexdigest()


async def stream_pulses(asking: Asking, values: Mapping[str, str], pulse_s: float) -> AsyncIterator[str]:
    """Yield an event at once and after every change; a comment at other times, so that a lost reader is noticed."""
    before: Any = None
    while True:
        try:
            _, rows = await run_in_threadpool(asking.ask, "pulse", values)
            now, name = rows, "pulse"
        except RollbusError as error:
            now, name = [[str(error)]], "down"
        yield f"event: {name}\ndata: {json.dumps(now[0])}\n\n" if now != before else ":\n\n"
        before = now
        await asyncio.sleep(pulse_s)


def add_texts(columns: list[str], rows: list[list[Any]], texts: Texts) -> tuple[list[str], list[list[Any]]]:
    """Return the answer with one more column: the text of each token id."""
    place = columns.index("token_ids")
    return [*columns, "token_texts"], [[*row, texts(row[place] or [])] for row in rows]


class _Headers:
    """Adds `HEADERS` to every answer."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [
                    *message["headers"],
                    *((name.encode(), value.encode()) for name, value in HEADERS.items()),
                ]
            await send(message)

        await self._app(scope, receive, send_with)
