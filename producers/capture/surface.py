"""What differs between the APIs that are recorded: how to ask for tokens, how to read an answer, what to hide again.

One implementation each: `chat.py` (chat completions), `completions.py` (the older completions) and `responses.py`. A
surface is stateless; `Call` does what is the same for all.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from rollbus.producers.turns.answer import ServerAnswer, Unread, fields_of
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
class Asked:
    """What the application asks for by itself, and therefore gets to see."""

    logprobs: bool = False
    ids: bool = False
    usage: bool = False


class Accumulator(Protocol):
    """Puts a stream together."""

    def add(self, chunk: Any, hide: Asked | None = None) -> bool:
        """Take the next chunk; return whether the application is to see it, and what it did not ask for, which is all
        but `hide`, is taken out of it already: else `Surface.shown` does that.
        """

    def keeper(self, hide: Asked | None) -> Callable[[Any], bool] | None:
        """Return what takes a chunk as the JSON of which the client makes an object, and takes out of it what `hide`
        does not ask for, or returns False: then `add` takes the JSON. None where chunks are taken as objects only.
        """

    def answer(self, *, complete: bool = True) -> ServerAnswer | Unread:
        """Return what has come so far, or what it can be read from when there is time."""


class Surface(Protocol):
    """One API."""

    def own(self, request: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """Return the arguments with everything that can be read only once copied, to call the server with; None where
        calls of this form are not recorded.
        """

    def asked(self, request: Mapping[str, Any]) -> Asked:
        """Say what the application asks for."""

    def ask(self, request: Mapping[str, Any], *, force: bool, refused: Collection[str] = ()) -> dict[str, Any]:
        """Return the arguments to add or replace, so that the answer has tokens; `force` even where the application
        says no, and none of what the server has `refused` (names of `ADDED`).
        """

    def recorded(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Return a copy of the request in the form of chat completions, for the record."""

    def answer(self, response: Any) -> ServerAnswer | Unread:
        """Return the neutral form of an unstreamed answer, or what it can be read from when there is time."""

    def accumulator(self) -> Accumulator:
        """Return what takes the chunks of a stream."""

    def hide(self, response: Any, asked: Asked) -> None:
        """Take out of an answer or a chunk what the application did not ask for."""

    def shown(self, chunk: Any, asked: Asked) -> bool:
        """Hide in a chunk what `hide` does in an answer, and say whether the application is to see the chunk at all."""


def own_tools(request: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the request with its tools as a list, where they can be read only once."""
    tools = request.get("tools")
    return {**request, "tools": list(tools)} if isinstance(tools, Iterator) else request


def with_ids_and_sampling(request: Mapping[str, Any], refused: Collection[str]) -> dict[str, Any]:
    """Return the fields that ask for token ids and name how to sample, as far as the request does neither; none where
    its extra fields are not a mapping.
    """
    given = request.get("extra_body")
    if given is not None and not isinstance(given, Mapping):
        return {}
    neutral = neutral_settings(request, refused)
    extra: dict[str, Any] = {name: value for name, value in neutral.items() if name not in STANDARD}
    if "token_ids" not in refused:
        extra["return_token_ids"] = True
    added: dict[str, Any] = {name: neutral[name] for name in STANDARD if name in neutral}
    return {**added, "extra_body": {**extra, **(given or {})}} if extra else added


def asks_ids(request: Mapping[str, Any]) -> bool:
    """Say whether a request asks for token ids by itself."""
    extra = request.get("extra_body")
    return isinstance(extra, Mapping) and bool(extra.get("return_token_ids"))


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


def is_no_usage_chunk(chunk: Any) -> bool:
    """Say whether a chunk is more than the token counts at a stream's end."""
    choices = chunk.get("choices", True) if isinstance(chunk, dict) else getattr(chunk, "choices", True)
    return bool(choices) or fields_of(chunk)("usage") is None


def empty(value: Any, name: str) -> None:
    """Set a field of an answer's object that the API knows to None, past the checks of the client's models: they cost
    more than all else that is done with a chunk.
    """
    fields = value if isinstance(value, dict) else value.__dict__
    if fields.get(name) is not None:
        fields[name] = None


def forget(value: Any, name: str) -> None:
    """Take a field that the API does not know out of an answer's object."""
    extra = value if isinstance(value, dict) else getattr(value, "__pydantic_extra__", None)
    if extra:
        extra.pop(name, None)
