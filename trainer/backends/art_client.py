"""The HTTP client of `rollbus art-server`: the `Backend` protocol over the routes of `wire`.

Nothing here knows ART. Every route may be asked twice, so a request that got no answer is sent again: a batch is known
by its hash. Waiting is long polling, so a result is seen as soon as it exists.
"""

import asyncio
import io
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any

import aiohttp

from rollbus.schemas.errors import ConfigurationError, RejectedError, UnavailableError
from rollbus.trainer.backends import wire
from rollbus.trainer.backends.protocol import (
    TERMINAL_STATES,
    Capabilities,
    JobStatus,
    TrainRequest,
    TrainResult,
    Versions,
)

SHORTEST_WAIT_S = 0.05
CONNECT_TIMEOUT_S = 5.0
ANSWER_TIMEOUT_S = 60.0
"""Without the time to send a body; longer than the longest wait that the server grants."""
SLOWEST_BYTES_PER_S = 1 << 20
"""A body that is taken more slowly has stalled."""
IDLE_CONNECTION_S = 4.0
"""Below the five seconds after which the server closes one: a request sent then is lost."""
RETRY_PAUSES_S = (0.2, 1.0, 3.0)
"""Before a request without an answer becomes an error: enough for a blip, not for a restart."""


class ArtClient:
    """Fulfils `Backend` with a server elsewhere."""

    def __init__(
        self, url: str, *, token: str | None = None, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    ) -> None:
        self._http = ArtHttp(url, token=token, sleep=sleep)
        self._prepared: tuple[str, TrainRequest] | None = None
        """The batch that was sent ahead, and its name on the server."""
        self._submitted: str | None = None
        """Hash of the batch that the server took last."""

    async def is_healthy(self) -> bool:
        """Ask once, without retries; False for any answer but 200."""
        return await self._http.answers(wire.HEALTH)

    async def capabilities(self) -> Capabilities:
        """Return what the server says of itself."""
        return wire.from_json(Capabilities, await self._http.ask("GET", wire.CAPABILITIES))

    async def prepare(self, request: TrainRequest) -> None:
        """Send the batch, to be begun by `submit`."""
        self._prepared = None
        answer = await self._send_batch("PUT", wire.PREPARED, request)
        self._prepared = str(answer["prepared"]), request

    async def submit(self, request: TrainRequest) -> str:
        """Begin the batch that was prepared, or send it; the server recognises a hash that it knows."""
        answer = await self._begin_prepared(request) or await self._send_batch("POST", wire.BATCHES, request)
        self._submitted = str(answer["batch_hash"])
        return self._submitted

    async def status(self, batch_hash: str) -> JobStatus:
        """Return the job's state."""
        return wire.from_json(JobStatus, await self._ask_status(batch_hash, wait_s=0.0))

    async def wait(self, batch_hash: str, poll_interval_s: float = 0.5) -> TrainResult:
        """Poll until the job ends; UnavailableError if a restarted server has forgotten the job: submit it again."""
        if batch_hash != self._submitted:
            await self.status(batch_hash)
        wait_s = min(max(poll_interval_s, SHORTEST_WAIT_S), wire.LONGEST_WAIT_S)
        while True:
            try:
                answer = await self._ask_status(batch_hash, wait_s=wait_s, result=1)
            except RejectedError as error:
                raise UnavailableError(
                    f"{self._http.url} no longer knows batch {batch_hash}: it was restarted meanwhile; submit it again"
                ) from error
            status = wire.from_json(JobStatus, answer)
            if status.state in TERMINAL_STATES:
                break
        if answer.get("result") is not None:
            return wire.from_json(TrainResult, answer["result"])
        if status.state == "completed" and (result := await self.journal(batch_hash)) is not None:
            return result
        raise replace(status, message=f"{self._http.url}: {status.message}").to_error()

    async def cancel(self, batch_hash: str) -> JobStatus:
        """Cancel it while it is pending."""
        return wire.from_json(JobStatus, await self._http.ask("POST", wire.CANCEL.format(batch_hash=batch_hash)))

    async def journal(self, batch_hash: str) -> TrainResult | None:
        """Return the durable result."""
        answer = await self._http.ask("GET", wire.RESULT.format(batch_hash=batch_hash))
        return None if answer["result"] is None else wire.from_json(TrainResult, answer["result"])

    async def versions(self) -> Versions:
        """Return every version that the server keeps."""
        return wire.from_json(Versions, await self._http.ask("GET", wire.VERSIONS))

    async def promote(self, version: int, *, rollback: bool = False) -> None:
        """Serve a version; it is loaded when this returns."""
        await self._http.ask("POST", wire.SERVING, json_body={"version": version, "rollback": rollback})

    async def close(self) -> None:
        """Close the connections; the server goes on."""
        await self._http.close()

    async def _begin_prepared(self, request: TrainRequest) -> Any:
        """Begin the prepared batch; None if another one was prepared, or the server refuses."""
        if self._prepared is None or replace(self._prepared[1], base_version=request.base_version) != request:
            return None
        (name, _), self._prepared = self._prepared, None
        try:
            return await self._http.ask(
                "POST", wire.PREPARED, json_body={"prepared": name, "base_version": request.base_version}
            )
        except RejectedError:
            return None

    async def _send_batch(self, method: str, path: str, request: TrainRequest) -> Any:
        body = wire.request_to_bytes(request)
        return await self._http.ask(method, path, data=body, media_type=wire.BATCH_TYPE)

    async def _ask_status(self, batch_hash: str, **params: float) -> Any:
        return await self._http.ask("GET", wire.BATCH.format(batch_hash=batch_hash), params=params)


class ArtHttp:
    """Requests: a JSON object comes back, or an error that names the request. Connections are kept between them."""

    def __init__(
        self, url: str, *, token: str | None = None, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    ) -> None:
        if token and not (token.isascii() and token.isprintable() and token == token.strip()):
            raise ConfigurationError(
                f"the token for {url} has a character that does not arrive in a header (a line break, a space at an "
                "end, a letter beyond ASCII); set `backend: token:` without it"
            )
        self.url = url.rstrip("/")
        self._headers = {"authorization": f"Bearer {token}"} if token else {}
        self._sleep = sleep
        self._session: aiohttp.ClientSession | None = None

    async def answers(self, path: str) -> bool:
        """Ask once, without retries; False for any answer but 200."""
        try:
            timeout = aiohttp.ClientTimeout(total=CONNECT_TIMEOUT_S)
            async with self._open_session().get(self.url + path, timeout=timeout) as response:
                return response.status == 200
        except (aiohttp.ClientError, TimeoutError):
            return False

    async def ask(
        self,
        method: str,
        path: str,
        *,
        json_body: Any = None,
        data: bytes | None = None,
        media_type: str | None = None,
        params: Mapping[str, float] | None = None,
    ) -> dict[str, Any]:
        """Return the answer; raise an error of the server at once, UnavailableError after the retries."""
        request_name = f"{method} {self.url}{path}"
        headers = {"content-type": media_type} if media_type else None
        longest_s = ANSWER_TIMEOUT_S + len(data or b"") / SLOWEST_BYTES_PER_S
        timeout = aiohttp.ClientTimeout(total=longest_s, sock_connect=CONNECT_TIMEOUT_S)
        pauses = iter(RETRY_PAUSES_S)
        while True:
            body = None if data is None else io.BytesIO(data)
            try:
                async with self._open_session().request(
                    method,
                    self.url + path,
                    json=json_body,
                    data=body,
                    headers=headers,
                    params=params,
                    allow_redirects=False,
                    timeout=timeout,
                ) as response:
                    return _parse_object(await response.read(), response.status, request_name)
            except (aiohttp.ClientError, TimeoutError) as error:
                pause = next(pauses, None)
                if pause is None:
                    raise UnavailableError(
                        f"{request_name}: no answer from the art-server ({type(error).__name__}: {error}); "
                        "see that `rollbus art-server` runs and that `backend: url` is right"
                    ) from error
                await self._sleep(pause)

    async def close(self) -> None:
        """Close the connections."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    def _open_session(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                headers=self._headers, connector=aiohttp.TCPConnector(keepalive_timeout=IDLE_CONNECTION_S)
            )
        return self._session


def _parse_object(data: bytes, status: int, request: str) -> dict[str, Any]:
    try:
        body = json.loads(data)
    except ValueError:
        body = None
    if status >= 400:
        raise wire.error_from_json(body, status, request=request)
    if not isinstance(body, dict):
        raise UnavailableError(f"{request} answered {status} with no JSON object")
    return body
