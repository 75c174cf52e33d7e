"""Which requests are calls of a model: the address and the body decide, not the client."""

from collections.abc import Mapping
from typing import Any

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
"""By the end of the path, the longest first: the API, and a field that every request of it has."""
KEY_HEADERS = ("authorization", "api-key", "x-api-key", "x-goog-api-key")


def find_surface(path: str) -> tuple[str, Surface, str] | None:
    """Return the address without its end, the API, and a field of its requests; None where no API has this path."""
    for end, (surface, field) in ENDPOINTS.items():
        if path.endswith(end):
            return path[: -len(end)] + "/", surface, field
    return None


def begin_call(
    capture: Capture, method: str, address: str, headers: Mapping[str, str], content: bytes | None
) -> RecordedCall | None:
    """Return the call that a request makes; None where it makes none, or our own client above records it already.

    `content` is None where the body is not in memory.
    """
    if method != "POST" or (match := find_surface(address.partition("?")[0])) is None:
        return None
    if context.recorded_by() is capture.outbox:
        return None
    server, surface, field = match
    request = None if content is None or "content-encoding" in headers else _read_object(content)
    if request is None or field not in request:
        return None
    if surface is CONTENTS:  # its address names the model
        request = {"model": server.rstrip("/").rpartition("/")[2], **request}
    for name in KEY_HEADERS:
        if (key := headers.get(name)) is not None:
            capture.outbox.guard.call("key", capture.outbox.keep_secret, key.rpartition(" ")[2], default=None)
    return capture.begin(request, surface, server, content)


def _read_object(content: bytes) -> dict[str, Any] | None:
    try:
        value = parse_json(content)
    except ValueError:
        return None  # the server's answer says what is wrong with it
    return value if isinstance(value, dict) else None
