"""A request → the application, or a refusal: name, origin, credentials, kind, size and time are checked here alone.

The order is the rule: who asks is checked by the head, before a byte of the body is kept. The body is read here, whole,
within a size and a time; the application gets it in one piece. All bodies together have a bound, too.
"""

import asyncio
import hmac
import json
from collections.abc import Awaitable, Callable, Collection, Mapping, MutableMapping
from contextlib import suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from rollbus.runtime.machine import LOCAL_NAMES
from rollbus.schemas.errors import RecordTooLargeError
from rollbus.schemas.principals import Grant, Principal

Message = MutableMapping[str, Any]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

BODY_S = 10.0
"""For the first bytes of a body, and more as they come."""
SLOWEST_BYTES_PER_S = 64 * 1024
DRAIN_S = 2.0
"""How long a refused body is still read and thrown away: a client that only sends would miss the answer."""
TOTAL_BODIES = 4
"""All bodies that are read at a time may be so many times the largest one."""
JSON_TYPES = frozenset({"application/json"})
_SAFE = frozenset({"GET", "HEAD", "OPTIONS"})


@dataclass(frozen=True, slots=True)
class RequestHead:
    """What is known of a request before its body."""

    method: str
    path: str
    headers: Mapping[str, str]
    """Names in lower case; of several with one name, the first."""
    query: Mapping[str, str]

    @property
    def has_body(self) -> bool:
        """Whether a body follows."""
        return self.headers.get("content-length", "0") != "0" or "transfer-encoding" in self.headers

    def bearer(self) -> str:
        """Return the token of the Authorization header, or an empty text."""
        return token_in(self.headers.get("authorization", ""))


@dataclass(slots=True)
class RefusedError(Exception):
    """Ends a request with an answer."""

    status: int
    message: str
    headers: Mapping[str, str] = field(default_factory=dict)


ErrorAnswer = tuple[Mapping[str, str], bytes]
"""Headers, with the content type, and body."""
FindPrincipal = Callable[[str], Principal | None]
"""Returns whose token a text is; None for nobody's."""
Admit = Callable[[RequestHead], int | None]
"""Returns how many bytes a body may have, None for the door's own limit; raises RefusedError."""


def json_refusal(refusal: RefusedError, head: RequestHead) -> ErrorAnswer:
    """Write a refusal as OpenAI's clients read it."""
    return as_json({"error": {"message": refusal.message, "type": "refused"}})


def as_json(content: Any) -> ErrorAnswer:
    """Return the head and body of an answer in JSON."""
    return {"content-type": "application/json"}, json.dumps(content).encode()


@dataclass(frozen=True, slots=True)
class Door:
    """What a server asks of every request."""

    admit: Admit
    body_bytes: int
    """The largest body."""
    names: Collection[str] | None = LOCAL_NAMES
    """Names under which the server is asked; None for any, where other machines reach it."""
    media_types: Collection[str] | None = JSON_TYPES
    """Kinds of bodies; None for any."""
    describe: Callable[[RefusedError, RequestHead], ErrorAnswer] = json_refusal
    body_s: float = BODY_S
    encodings: Collection[str] = ()
    """Compressions of bodies that are undone here, within the same bound; else a compressed body is refused."""


KEY_REFUSED = (
    "the API key is missing or wrong; `rollbus.read_token(url)` returns it in the folder where the stack was started, "
    "and elsewhere if ROLLBUS_SECRETS names that folder's .rollbus/secrets"
)


def names_of(host: str) -> Collection[str] | None:
    """Return the names under which a server that listens on `host` is asked."""
    return LOCAL_NAMES if host in LOCAL_NAMES else None


def token_admits(
    token: str | None,
    *,
    open_paths: Collection[str] = (),
    find_principal: FindPrincipal | None = None,
    needs: Callable[[RequestHead], Grant] | None = None,
) -> Admit:
    """Return a check for a bearer token; with None everybody may come in, `open_paths` are open anyway.

    A principal's own token opens what its grants allow; without `needs` a door is the owner's alone.
    """

    def admit(head: RequestHead) -> None:
        given_token = head.bearer()
        if token is None or head.path in open_paths or same(given_token, token):
            return
        principal = find_principal(given_token) if find_principal is not None else None
        if principal is None:
            raise RefusedError(401, KEY_REFUSED, {"www-authenticate": "Bearer"})
        if needs is None or (grant := needs(head)) not in principal.grants:
            requirement = "the owner's token" if needs is None else f"a token that may {grant}"
            raise RefusedError(403, f"principal {principal.name!r} may not do this; it takes {requirement}")

    return admit


def token_in(authorization: str) -> str:
    """Return the token of an Authorization header's value, or an empty text."""
    scheme, _, token = authorization.partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


def needs_record(head: RequestHead) -> Grant:
    """Say what it takes to ask a model or to bring traces."""
    return "record"


def same(given_token: str, expected_token: str) -> bool:
    """Whether two secrets are equal, in a time that does not say where they differ."""
    return hmac.compare_digest(given_token.encode(errors="replace"), expected_token.encode())


class Guard:
    """ASGI middleware around an application."""

    def __init__(self, app: App, door: Door) -> None:
        self.app, self._door = app, door
        self._held_bytes = 0
        """Bytes of bodies that are being read or answered."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":
            raise RuntimeError(f"{scope['type']} is not served")
        head = _read_head(scope)
        held_bytes = 0

        def hold(size: int) -> None:
            nonlocal held_bytes
            if self._held_bytes + size > TOTAL_BODIES * self._door.body_bytes:
                raise RefusedError(503, "too many large requests at a time; try again later", {"retry-after": "1"})
            self._held_bytes += size
            held_bytes += size

        try:
            body = await self._read_admitted(head, receive, hold)
        except RefusedError as refusal:
            await self._refuse(refusal, head, receive, send)
        else:
            await self.app(scope, _replay(body, receive), send)
        finally:
            self._held_bytes -= held_bytes

    async def _read_admitted(self, head: RequestHead, receive: Receive, hold: Callable[[int], None]) -> bytes:
        door = self._door
        _check_framing(head)
        _check_name(head, door.names)
        _check_origin(head)
        most = door.admit(head)
        most = door.body_bytes if most is None else min(most, door.body_bytes)
        if head.has_body:
            _check_stated_size(head, most)
            _check_kind(head, door.media_types, door.encodings)
        body = await _read_body(receive, most, door.body_s, hold)
        return _expand(body, head, most, hold) if _encoding_of(head) in door.encodings else body

    async def _refuse(self, refusal: RefusedError, head: RequestHead, receive: Receive, send: Send) -> None:
        described, body = self._door.describe(refusal, head)
        with suppress(TimeoutError):
            async with asyncio.timeout(DRAIN_S):
                while "expect" not in head.headers and (await receive()).get("more_body"):
                    pass
        headers = {
            **described,
            "content-length": str(len(body)),
            "connection": "close",
            **refusal.headers,
        }
        raw = [(name.encode("latin-1"), value.encode("latin-1", "replace")) for name, value in headers.items()]
        await send({"type": "http.response.start", "status": refusal.status, "headers": raw})
        await send({"type": "http.response.body", "body": body})


def _read_head(scope: Scope) -> RequestHead:
    headers: dict[str, str] = {}
    for name, value in scope["headers"]:
        headers.setdefault(name.decode("latin-1").lower(), value.decode("latin-1"))
    query = dict(parse_qsl(scope.get("query_string", b"").decode("latin-1"), keep_blank_values=True))
    return RequestHead(scope["method"], scope["path"], headers, query)


def _check_framing(head: RequestHead) -> None:
    """Refuse a body that is framed in two ways: a proxy before us may read the other one, and take what is left for a
    request of its own (RFC 9112, 6.1). A refusal closes the connection.
    """
    if "transfer-encoding" in head.headers and "content-length" in head.headers:
        raise RefusedError(400, "a request has Content-Length or Transfer-Encoding, not both")


def _check_name(head: RequestHead, names: Collection[str] | None) -> None:
    if names is not None and _host_of(f"//{head.headers.get('host', '')}") not in names:
        raise RefusedError(403, f"this server is asked as {', '.join(sorted(names))}, under no other name")


def _check_origin(head: RequestHead) -> None:
    """Refuse what another page sends; only following a link is not its doing. A sandbox has origin `null`.

    On this machine each port is a program of its own, so another port is another page.
    """
    host, origin = head.headers.get("host", ""), head.headers.get("origin")
    follows_link = (
        head.headers.get("sec-fetch-mode") == "navigate"
        and head.headers.get("sec-fetch-dest", "document") == "document"
        and head.method in _SAFE
    )
    is_foreign = origin is not None and not _is_of(origin, host)
    is_elsewhere = head.headers.get("sec-fetch-site", "none") not in ("none", "same-origin")
    if is_foreign or (is_elsewhere and not follows_link):
        raise RefusedError(403, "requests of other sites' pages are refused")


def _is_of(origin: str, host: str) -> bool:
    """Whether an origin is the place that was asked; the port counts on this machine, and a proxy may leave it out."""
    name = _host_of(f"//{host}")
    if name in LOCAL_NAMES:
        return origin.partition("://")[2].lower() == host.lower()
    return (_host_of(origin) or "") == name


def _check_kind(head: RequestHead, media_types: Collection[str] | None, encodings: Collection[str]) -> None:
    if media_types is None:
        return
    media_type = head.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type not in media_types:
        raise RefusedError(
            415, f"the content type is {media_type or 'missing'}; send {' or '.join(sorted(media_types))}"
        )
    if _encoding_of(head) not in ("identity", *encodings):
        hint = f"; {' or '.join(sorted(encodings))} is read" if encodings else ""
        raise RefusedError(415, f"bodies compressed so are not read here; send the body as it is{hint}")


def _encoding_of(head: RequestHead) -> str:
    return head.headers.get("content-encoding", "identity").strip().lower()


def _expand(body: bytes, head: RequestHead, most: int, hold: Callable[[int], None]) -> bytes:
    """Return the body as it was before it was compressed."""
    from rollbus.runtime.decompression import expand  # of the servers that need it alone

    try:
        plain = expand(body, _encoding_of(head), most)
    except RecordTooLargeError as error:
        raise RefusedError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, str(error)) from error
    hold(len(plain))
    return plain


def _check_stated_size(head: RequestHead, most: int) -> None:
    stated = head.headers.get("content-length", "0")
    if not stated.isascii() or not stated.isdigit():
        raise RefusedError(400, "the content length is not a number")
    if int(stated) > most:
        raise _too_long(most)


async def _read_body(receive: Receive, most: int, body_s: float, hold: Callable[[int], None]) -> bytes:
    parts: list[bytes] = []
    size = 0
    loop = asyncio.get_running_loop()
    start = loop.time()
    while True:
        try:
            async with asyncio.timeout_at(start + body_s + size / SLOWEST_BYTES_PER_S):
                message = await receive()
        except TimeoutError:
            raise RefusedError(408, f"after {size} bytes the body did not come on in time") from None
        if message["type"] == "http.disconnect":
            raise RefusedError(400, "the body ended early")
        part = message.get("body", b"")
        size += len(part)
        if size > most:
            raise _too_long(most)
        if part:
            hold(len(part))
            parts.append(part)
        if not message.get("more_body"):
            return parts[0] if len(parts) == 1 else b"".join(parts)


def _too_long(most: int) -> RefusedError:
    return RefusedError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"the request body is longer than {most} bytes")


def _replay(body: bytes, receive: Receive) -> Receive:
    waiting: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def next_message() -> Message:
        return waiting.pop() if waiting else await receive()

    return next_message


def _host_of(address: str) -> str | None:
    try:
        return urlsplit(address).hostname
    except ValueError:  # a bracket that nothing closes
        return None
