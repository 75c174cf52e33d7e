"""What differs between the APIs that are recorded: how to ask for tokens, how to read an answer, what to hide again.

One implementation each: `chat.py` (chat completions), `completions.py` (the older completions) and `responses.py`. A
surface is stateless; `Call` does what is the same for all.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from rollbus.producers.turns.answer import ServerAnswer
from rollbus.producers.turns.sampling_settings import (
    EXTENSIONS,
    NEUTRAL,
    STANDARD,
    STANDARD_SETTINGS,
    neutral_settings,
)

ADDED: Mapping[str, tuple[str, ...]] = {
    "logprobs": ("logprob",),
    "token_ids": ("token_id",),
    "usage": ("stream_options", "include_usage"),
    STANDARD_SETTINGS: STANDARD,
    EXTENSIONS: tuple(name for name in NEUTRAL if name not in STANDARD),
}
"""What is asked for in addition, each with the words by which a server's refusal names it."""


@dataclass(slots=True)
class Wishes:
    """What the application asks for by itself, and therefore gets to see."""

    logprobs: bool = False
    ids: bool = False
    usage: bool = False


class StreamReader(Protocol):
    """Puts a stream together, when there is time."""

    def read(self, chunk: Any) -> None:
        """Take the next chunk."""

    def answer(self, *, complete: bool = True) -> ServerAnswer:
        """Return what has come."""


class Surface(Protocol):
    """One API. Requests and answers are the JSON of its bodies."""

    empty_logprobs: bytes
    """What stands in an answer in place of log-probs that nobody asked for."""

    def is_recorded(self, request: Mapping[str, Any]) -> bool:
        """Say whether calls of this form are recorded."""

    def read_wishes(self, request: Mapping[str, Any]) -> Wishes:
        """Say what the application asks for."""

    def add_wishes(self, request: Mapping[str, Any], *, force: bool, refused: Collection[str] = ()) -> dict[str, Any]:
        """Return the fields to add or replace, so that the answer has tokens; `force` even where the application
        says no, and none of what the server has `refused` (names of `ADDED`).
        """

    def convert_request(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Return the request in the form of chat completions, for the record."""

    def read_response(self, response: Any) -> ServerAnswer:
        """Return the neutral form of an unstreamed answer."""

    def make_reader(self) -> StreamReader:
        """Return what puts a stream together."""


def ids_and_sampling(request: Mapping[str, Any], refused: Collection[str]) -> dict[str, Any]:
    """Return the fields that ask for token ids and name how to sample, as far as the request does neither."""
    added: dict[str, Any] = {**neutral_settings(request, refused)}
    if "token_ids" not in refused and not asks_ids(request):
        added["return_token_ids"] = True
    return added


def asks_ids(request: Mapping[str, Any]) -> bool:
    """Say whether a request asks for token ids by itself."""
    return bool(request.get("return_token_ids"))


def asks_usage(request: Mapping[str, Any]) -> bool:
    """Say whether a streamed request asks for its token counts by itself."""
    options = request.get("stream_options")
    return isinstance(options, Mapping) and bool(options.get("include_usage"))


def with_usage(request: Mapping[str, Any]) -> dict[str, Any]:
    """Return the stream options that ask for token counts; none where the request is not streamed or has them."""
    if request.get("stream") is not True or asks_usage(request):
        return {}
    options = request.get("stream_options")
    return {"stream_options": {**(options if isinstance(options, Mapping) else {}), "include_usage": True}}
