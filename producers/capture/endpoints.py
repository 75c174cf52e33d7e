"""Which requests are calls of a model: the address and the body decide, not the client."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from rollbus.producers.capture.call import Capture, RecordedCall
from rollbus.producers.capture.chat import CHAT
from rollbus.producers.capture.completions import COMPLETIONS
from rollbus.producers.capture.responses import RESPONSES
from rollbus.producers.capture.surface import Surface
from rollbus.producers.capture.without_tokens import CONTENTS, MESSAGES
from rollbus.producers.episode import context
from rollbus.schemas.ids import parse_json

ENDPOINTS: Mapping[str, tuple[Surface, str]] = {
    "/chat/completions": (CHAT, "messages"),
    "/completions": (COMPLETIONS, "prompt"),
    "/responses": (RESPONSES, "input"),
    "/v1/messages": (MESSAGES, "max_tokens"),
    ":generateContent": (CONTENTS, "contents"),
    ":streamGenerateContent": (CONTENTS, "contents"),
}
"""By the end of the path: the API, and a field that every request of it has. `/chat/completions` is before
`/completions`, with which it ends, too."""
KEY_HEADERS = ("authorization", "api-key", "x-api-key", "x-goog-api-key")


class CallAddress(NamedTuple):
    """An address at which a model is called."""

    server: str
    """The address without its end: what the path of each API is added to."""
    surface: Surface
    required_field: str
    """What every request has: another one that is posted to this address is not a call."""


def find_endpoint(path: str) -> CallAddress | None:
    """Return what is called at an address or a path; None where no API has this path."""
    for end, (surface, field) in ENDPOINTS.items():
        if path.endswith(end):
            return CallAddress(path[: -len(end)] + "/", surface, field)
    return None


def begin_call(
    capture: Capture, method: str, address: str, headers: Mapping[str, str], content: bytes | None
) -> RecordedCall | None:
    """Return the call that a request makes; None where it makes none, or a client of ours above records it.

    Names in `headers` are in small letters. `content` is None where the body is not in memory.
    """
    if method != "POST" or (endpoint := find_endpoint(address.partition("?")[0])) is None:
        return None
    if context.recorded_by() is capture.outbox:
        return None
    request = None if content is None or "content-encoding" in headers else _read_object(content)
    if request is None or endpoint.required_field not in request:
        return None
    if endpoint.surface is CONTENTS:  # its address names the model
        request = {"model": endpoint.server.rstrip("/").rpartition("/")[2], **request}
    for name in KEY_HEADERS:  # no record may hold the key, whatever repeats it
        if (key := headers.get(name)) is not None:
            capture.outbox.guard.call("key", capture.outbox.keep_secret, key.rpartition(" ")[2], default=None)
    return capture.begin(request, endpoint.surface, endpoint.server, content)


def _read_object(content: bytes) -> dict[str, Any] | None:
    try:
        value = parse_json(content)
    except ValueError:
        return None  # the server's answer says what is wrong with it
    return value if isinstance(value, dict) else None
