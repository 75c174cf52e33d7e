"""The page's web application: files, answers as JSON, and a stream of events for new data.

    GET /                    the page
    GET /static/…            its files, all of them shipped with the package
    GET /api/ask/NAME?run=…  a question's answer: {"columns": […], "rows": […]}
    GET /api/sql/NAME        a question's SQL
    GET /api/lag             every consumer group's lag, from Kafka: {"groups": […]}, with an "error" while it is away
    GET /api/reasons         what each reason of a drop means, and what to do
    GET /api/health          what `rollbus status --json` says: {"verdict": {…}, "funnels": […], …}
    POST /api/session        a token and a name → a session; GET says whose it is, DELETE ends it
    POST /api/verdicts       a reward for an episode, into the log, of a session
    GET /api/actions         what the owner can do, and what each will do
    POST /api/actions        do it, of a session of the owner's, or show what it would do
    POST /api/data-sets      a trajectory into a data set, or out of it, of a session of the owner's
    GET /api/live?run=…      server-sent events: `pulse` when something was written, `down` while ClickHouse is away

It serves this machine only, under a name of this machine. The page's own token reads. What writes asks for a session
in addition (`sessions`). Its headers forbid the browser to load anything from elsewhere.

The address that the command prints brings the page's token behind a `#`, which no browser sends. The page keeps it in
the storage of its origin. A cookie would go to every port of this machine, also to another user's program.
"""

import asyncio
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
from rollbus.consumers.clickhouse.questions.saved_questions import UnknownRunError
from rollbus.runtime.http.guard import token_in
from rollbus.schemas.errors import ConfigurationError, RejectedError, RollbusError
from rollbus.ui.actions import Commands, describe_actions
from rollbus.ui.door import ACTIONS, SESSION, VERDICTS, WRITING
from rollbus.ui.page_questions import Asking, questions
from rollbus.ui.page_reports import PageReports
from rollbus.ui.sessions import PageJudge, Sessions, make_cookie
from rollbus.ui.token_text import Texts

if TYPE_CHECKING:
    from rollbus.health.lag import LagRow
    from rollbus.health.status import StatusWatch

Lags = Callable[[], Awaitable[Sequence["LagRow"]]]
STATIC = Path(__file__).parent / "static"
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
    reports: PageReports | None = None,
    sessions: Sessions | None = None,
    commands: Commands | None = None,
    pulse_s: float = PULSE_S,
) -> Starlette:
    """Return the application; it closes what it is given when it ends. `lags` asks Kafka for consumer groups."""
    api = _Api(asking, namespace, texts, lags, health, reports, sessions or Sessions(None), commands, pulse_s)
    return Starlette(
        routes=[
            Route("/", _send_page),
            Route("/api/ask/{name}", api.ask),
            Route("/api/sql/{name}", _send_sql),
            Route("/api/lag", api.show_lag),
            Route("/api/health", api.show_health),
            Route("/api/reasons", _send_reasons),
            Route(SESSION, api.change_session, methods=["GET", "POST", "DELETE"]),
            Route(ACTIONS, _send_actions, methods=["GET"]),
            *(Route(path, api.act, methods=["POST"]) for path in WRITING),
            Route("/api/live", api.stream),
            Mount("/static", StaticFiles(directory=STATIC)),
        ],
        middleware=[Middleware(_Headers)],
        lifespan=api.close_at_end,
    )


async def _send_page(_: Request) -> Response:
    return FileResponse(STATIC / "index.html")


async def _send_sql(request: Request) -> Response:
    query = questions().get(request.path_params["name"])
    return (
        JSONResponse({"error": "no such question"}, status_code=404)
        if query is None
        else JSONResponse({"sql": query.sql})
    )


async def _send_reasons(_: Request) -> Response:
    from rollbus.health.funnel.losses import LOSSES, agree

    return JSONResponse(
        {reason: {"what": agree(loss.what, 1), "remedy": loss.remedy} for reason, loss in LOSSES.items()}
    )


async def _send_actions(_: Request) -> Response:
    return JSONResponse(describe_actions())


@dataclass(frozen=True, slots=True)
class _Api:
    """The answers below /api."""

    asking: Asking
    namespace: str
    texts: Texts | None
    lags: Lags | None
    health: "StatusWatch | None"
    reports: PageReports | None
    sessions: Sessions
    commands: Commands | None
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

    async def change_session(self, request: Request) -> Response:
        """Say whose session it is, open one, or end it."""
        cookies, host = request.headers.get("cookie", ""), request.headers.get("host", "")
        if request.method == "GET":
            return JSONResponse(_describe(self.sessions.judge_of(cookies)))
        self.sessions.end(cookies)
        if request.method == "DELETE":
            return JSONResponse(_describe(None), headers={"set-cookie": make_cookie(host, "")})
        try:
            name = str(_read_object(await request.body()).get("judge") or "")
            secret, judge = self.sessions.begin(token_in(request.headers.get("authorization", "")), name)
            if self.reports is not None:
                self.reports.check_judge(judge)
        except (ConfigurationError, ValueError) as error:
            return JSONResponse({"error": str(error)}, status_code=400)
        return JSONResponse(_describe(judge), headers={"set-cookie": make_cookie(host, secret)})

    async def act(self, request: Request) -> JSONResponse:
        judge = self.sessions.judge_of(request.headers.get("cookie", ""))
        try:
            values = _read_object(await request.body())
            if self.reports is None or judge is None:
                raise ConfigurationError("nothing can be written here")
            if request.url.path == VERDICTS:
                return JSONResponse({"event_id": await self.reports.report(judge, values)})
            if request.url.path == ACTIONS:
                if self.commands is None:
                    raise ConfigurationError("nothing can be done here")
                return JSONResponse(await self.commands.act(judge.name, values))
            await self.reports.change_member(values)
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


def _describe(judge: PageJudge | None) -> dict[str, Any]:
    return {"judge": judge.name if judge else None, "is_owner": judge is not None and judge.is_owner}


def _read_object(body: bytes) -> dict[str, Any]:
    try:
        values = json.loads(body)
    except RecursionError:
        raise ConfigurationError("send an object in JSON that is nested less deep") from None
    if not isinstance(values, dict):
        raise ConfigurationError("send an object in JSON")
    return values


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
