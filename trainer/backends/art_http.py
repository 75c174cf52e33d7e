"""Requests to `rollbus art-server`: a JSON object comes back, or an error that names the request.

A request that got no answer is sent again, since every route of `wire` may be asked twice.
"""

import asyncio
import io
import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import aiohttp

from rollbus.schemas.errors import ConfigurationError, UnavailableError
from rollbus.trainer.backends import wire

CONNECT_TIMEOUT_S = 5.0
ANSWER_TIMEOUT_S = 60.0
"""Without the time to send a body; longer than the longest wait that the server grants."""
SLOWEST_BYTES_PER_S = 1 << 20
"""A body that is taken more slowly has stalled."""
IDLE_CONNECTION_S = 4.0
"""Below the five seconds after which the server closes one: a request sent then is lost."""
RETRY_PAUSES_S = (0.2, 1.0, 3.0)
"""Before a request without an answer becomes an error: enough for a blip, not for a restart."""


class ArtHttp:
    """Keeps its connections between requests; opened by the first."""

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
