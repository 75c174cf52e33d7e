"""One call of an OpenAI client, from the request as the application made it to the recorded turns.

Before: asks the server for log-probs and token ids too. After: records, and hides what the application did not
ask for. Every step is guarded; where one fails the application's own request goes out and its own answer comes back.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import suppress
from contextvars import Token
from dataclasses import dataclass, field
from typing import Any

from rollbus.producers.capture.attributes import parse
from rollbus.producers.capture.chat import CHAT
from rollbus.producers.capture.surface import ADDED, Asked, Surface
from rollbus.producers.episode import context
from rollbus.producers.episode.episode import Episode
from rollbus.producers.episode.functions import current_function
from rollbus.producers.episode.open_episodes import OpenEpisodes
from rollbus.producers.episode.outbox import Outbox
from rollbus.producers.turns.answer import ServerAnswer, Unread
from rollbus.producers.turns.sampling_settings import settings_sent
from rollbus.producers.turns.turn_record import NOT_CAPTURED, Exchange

NO_SUCH_MODEL = 404
REFUSAL_STATUSES = (400, 422)
"""Statuses with which servers refuse an argument. An error with another status is a refusal only if it names what we
added: OpenAI answers 403 for log-probs that a model does not allow.
"""
REFUSAL_WORDS = ("unrecognized", "unknown", "unexpected", "extra", "unsupported")
"""Words of a refusal that does not say what it refuses. An error with none of these words, and none of those in
`ADDED`, has another cause, and the call is not tried again.
"""
MAX_REFUSING = 1000
"""Kinds of request remembered as refused."""
NOTHING: frozenset[str] = frozenset()
Refusing = dict[tuple[object, ...], frozenset[str]]
"""By kind of request (server, API, model, streamed, with tools), what of `ADDED` the server refuses."""


@dataclass(slots=True)
class Capture:
    """What the calls of one wrapped client share."""

    outbox: Outbox
    episodes: OpenEpisodes
    episode: Episode | None
    function: str | Callable[[], str] | None
    mode: str
    hide_injected: bool
    server: str = ""
    refusing: Refusing = field(default_factory=dict)
    """What the server has refused, by kind of request."""
    key: Callable[[], object] = lambda: None
    """Returns the client's key as it is now: it may be made again for every call."""
    hook: str = "wrap"
    """Named in what is recorded; see `Exchange.hook`."""

    def begin(self, request: dict[str, Any], surface: Surface = CHAT) -> "RecordedCall | None":
        """Return the call to observe; None where it belongs to no recorded episode, or cannot be observed: then the
        request is to be made as it is now.
        """
        arguments: Mapping[str, Any] | None = None
        try:
            if self.episodes.gives_way and context.recorded_by() not in (None, self.outbox):
                self.outbox.counts.add("calls_of_own_recorder")
                return None
            episode = self.episode or self.episodes.current()
            if episode is None or episode.ended:  # such as a thread that works on
                episode = self.episodes.open_for_call()
            if episode is None:
                self.outbox.counts.add("calls_outside_episode")
                return None
            if not episode.recording:
                return None
            if (arguments := surface.own(request)) is None:
                self._note_unobserved(episode, request)
                return None
            bare, routed = arguments, self.outbox.routed
            if routed is not None:
                arguments = self.outbox.guard.call("route", routed, bare, episode.id, default=bare)
            call = RecordedCall(self, episode, arguments, surface, bare)
            episode.calls_captured += 1
            context.mark_captured()
            return call
        except Exception as error:  # the host's call goes on, unrecorded
            self.outbox.guard.failed("begin", error)
            if arguments is not None:
                request.update(arguments)  # what could be read only once has been read
            return None

    def _note_unobserved(self, episode: Episode, request: Mapping[str, Any]) -> None:
        """Record that a call was made in a form that is not recorded."""
        self.outbox.counts.add("calls_unobserved")
        exchange = Exchange(
            request={"model": request.get("model")}, answer=ServerAnswer(), withheld=NOT_CAPTURED, hook=self.hook
        )
        episode.record(exchange, current_function() or episode.function)
        episode.end_if_of_call()


class RecordedCall:
    """One request and what became of it."""

    __slots__ = (
        "_asked",
        "_bare",
        "_capture",
        "_done",
        "_episode",
        "_function",
        "_guard",
        "_known",
        "_refused",
        "_request",
        "_started",
        "_surface",
        "kwargs",
        "original",
    )

    def __init__(
        self,
        capture: Capture,
        episode: Episode,
        arguments: Mapping[str, Any],
        surface: Surface,
        bare: Mapping[str, Any] | None = None,
    ) -> None:
        """Copy the request, which the application may change while it runs; `bare` is as the application made it."""
        self._bare = None if bare is arguments else bare
        self._started = time.perf_counter()
        self._capture, self._episode, self._surface = capture, episode, surface
        self._guard = capture.outbox.guard
        named = capture.function() if callable(capture.function) else capture.function
        self._function = named or current_function() or episode.function
        self.original = arguments
        self._request = surface.recorded(arguments)
        self._known: frozenset[str] = capture.refusing.get(self._kind(), NOTHING) if capture.refusing else NOTHING
        self._refused = self._known
        self._asked: Asked | None = None
        self._done = False
        self.kwargs = arguments if capture.mode == "passive" else self._with_injections()

    def _kind(self) -> tuple[object, ...]:
        request = self._request
        streamed, tools = request.get("stream") is True, bool(request.get("tools"))
        return self._capture.server, self._surface, str(request.get("model")), streamed, tools

    def _with_injections(self) -> Mapping[str, Any]:
        """Return the arguments to call with."""
        added = self._surface.ask(self.original, force=self._capture.mode == "force", refused=self._refused)
        return {**self.original, **added} if added else self.original

    def begin_request(self) -> Token[object]:
        """Let a recorder beneath know that this call is recorded; `context.end_recorded` takes it back."""
        return context.begin_recorded(self._capture.outbox)

    def retry(self, error: BaseException) -> bool:
        """Say whether to call again without something that we have added, because the server refuses it; else the
        call has failed.
        """
        for name, drop in (("route", self._drop_route), ("refused", self._drop_refused)):
            if isinstance(error, Exception) and self._guard.call(name, drop, error, default=False):
                return True
        self.on_error(error)
        return False

    def _drop_route(self, error: Exception) -> bool:
        """Ask for the application's own name, where the server does not have the version that was chosen."""
        if self._bare is None or getattr(error, "status_code", None) != NO_SUCH_MODEL:
            return False
        self._capture.outbox.counts.add("route_unknown")
        self.original, self._bare = self._bare, None
        self._request = self._surface.recorded(self.original)
        self.kwargs = self.original if self._capture.mode == "passive" else self._with_injections()
        return True

    def _drop_refused(self, error: Exception) -> bool:
        """Ask for less, where the error says that the server refuses some of it."""
        status = getattr(error, "status_code", None)
        if self.kwargs is self.original or status is None:
            return False
        text = f"{error} {getattr(error, 'body', '')}".lower()
        refused = _refused_in(text, named_only=status not in REFUSAL_STATUSES) - self._refused
        if not refused:
            return False
        self._refused |= refused
        before, self.kwargs = self.kwargs, self._with_injections()
        return self.kwargs != before

    def on_answer(self) -> None:
        """Remember what the server refuses, once it has answered without it.

        An error that names it is not enough: servers repeat the request in errors about something else.
        """
        if self._refused is not self._known:
            self._guard.call("refused", self._learn, default=None)

    def _learn(self) -> None:
        kind, refusing = self._kind(), self._capture.refusing
        if kind in refusing or len(refusing) < MAX_REFUSING:
            refusing[kind] = refusing.get(kind, NOTHING) | self._refused
        for name in sorted(self._refused - self._known):
            self._capture.outbox.counts.add(f"{name}_refused")

    def on_error(self, error: BaseException | None = None) -> None:
        """Count and record a call that gave no answer; its error may repeat the key it was made with."""
        self._capture.outbox.counts.add("calls_failed")
        self._guard.call("key", lambda: self._capture.outbox.keep_secret(self._capture.key()), default=None)
        self._guard.call("failed", self.record_without_answer, failure_of(error), default=None)

    def record_answer(self, response: Any) -> None:
        """Record an unstreamed answer and hide what was not asked for."""
        try:
            if not self._done:
                self._done = True
                self._record(self._answer(response), streamed=False)
        except Exception as error:
            self._guard.failed("finished", error)
        if self.is_hiding:
            self._hide(response)

    def _answer(self, response: Any) -> ServerAnswer | Unread:
        try:
            return self._surface.answer(response)
        except Exception as error:  # a shape that no server had so far
            self._guard.failed("answer", error)
            return ServerAnswer()

    def unparsed(self, response: Any) -> "Unparsed":
        """Return what records a response whose body the application may read by itself, at the episode's end."""
        unparsed = Unparsed(self, response)
        self._episode.opened(unparsed)
        return unparsed

    def record_without_answer(self, reason: str) -> None:
        """Record a call that gave no answer, or none that is seen here, and why."""
        if not self._done:
            self._done = True
            self._record(ServerAnswer(), streamed=self._request.get("stream") is True, withheld=reason)

    def streaming(self, stream: Any) -> Any:
        """Watch a stream while the application reads it; returns the same object."""
        return self._guard.call("stream", self._streaming, stream, default=stream)

    def _streaming(self, stream: Any) -> Any:
        iterator = getattr(stream, "_iterator", None)
        if iterator is None:
            self._capture.outbox.counts.add("calls_unobserved")
            self.record_without_answer(NOT_CAPTURED)
            return stream
        watch = self.watch()
        watch.tap(stream)
        if hasattr(iterator, "__anext__"):
            stream._iterator = watch.read_async(iterator)
        else:
            stream._iterator = watch.read(iterator)
        stream.close = watch.closing(stream.close)
        return stream

    def watch(self) -> "StreamWatch":
        """Return what takes a stream's chunks; the episode's end records it as far as it came."""
        watch = StreamWatch(self)
        self._episode.opened(watch)
        return watch

    def _record(self, answer: ServerAnswer | Unread, *, streamed: bool, withheld: str | None = None) -> None:
        exchange = Exchange(
            request={**self._request, **settings_sent(self.kwargs)},
            answer=answer,
            streamed=streamed,
            withheld=withheld,
            latency_ms=int((time.perf_counter() - self._started) * 1000),
            refused=self._refused,
            logprob_mode=self._capture.outbox.settings.logprob_mode,
            hook=self._capture.hook,
            server=self._capture.server,
        )
        self._episode.record(exchange, self._function)
        self._episode.end_if_of_call()

    @property
    def is_hiding(self) -> bool:
        """Whether something was asked for that the application did not ask for."""
        return self._capture.hide_injected and self.kwargs is not self.original

    @property
    def asked(self) -> Asked:
        """What the application asks for by itself."""
        if self._asked is None:
            self._asked = self._surface.asked(self._request)
        return self._asked

    def _hide(self, response: Any) -> None:
        try:
            self._surface.hide(response, self.asked)
        except Exception as error:
            self._guard.failed("hide", error)


def failure_of(error: BaseException | None) -> str:
    """Return the reason of a turn whose call ended in an error."""
    if isinstance(error, asyncio.CancelledError | GeneratorExit | KeyboardInterrupt):
        return "call_cancelled"
    is_timeout = isinstance(error, TimeoutError) or "Timeout" in type(error).__name__
    return "call_timed_out" if is_timeout else "call_failed"


def _refused_in(text: str, *, named_only: bool) -> frozenset[str]:
    """Return what a refusal is about; all that is ever added where it names none of it but sounds like it, unless only
    what it names counts.
    """
    named = frozenset(name for name, words in ADDED.items() if any(word in text for word in words))
    if named or named_only:
        return named
    return frozenset(ADDED) if any(word in text for word in REFUSAL_WORDS) else NOTHING


class Unparsed:
    """A response that the application has not parsed."""

    def __init__(self, call: RecordedCall, response: Any) -> None:
        self._call, self._response = call, response

    def detach(self) -> None:
        """Leave it to the watcher of what the application gets."""
        self._call._episode.finished(self)

    def abandon(self) -> None:
        """Record what the application has read instead, if it is still there."""
        self.detach()
        try:
            self._call.record_answer(parse(self._response.http_response.content))
        except Exception:  # not read, read piece by piece, or no JSON
            self._call._guard.call("raw_response", self._call.record_without_answer, NOT_CAPTURED, default=None)


class _Tapped:
    """Stands for the client in a stream, which asks it for nothing but this method."""

    def __init__(self, client: Any, process: Callable[..., Any]) -> None:
        self._client, self._process_response_data = client, process

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)


class StreamWatch:
    """A stream being read."""

    def __init__(self, call: RecordedCall) -> None:
        self._call = call
        self._accumulator = call._surface.accumulator()
        self._broken = False
        # Looked up once: they are asked for every chunk.
        self._asked = call.asked if call.is_hiding else None
        self._add, self._shown = self._accumulator.add, call._surface.shown
        self._tapped: bool | None = None
        """Whether the last chunk, which was taken as JSON, is to be seen; None where chunks are taken as objects."""

    def tap(self, stream: Any) -> None:
        """Take the stream's chunks as JSON, before the client makes objects of them, if this client has such a place.

        What is hidden then is never made an object of. For a log-prob that takes the client longer than all that is
        done here.
        """
        client = getattr(stream, "_client", None)
        make = getattr(client, "_process_response_data", None)
        keep, take = self._accumulator.keeper(self._asked), self.take
        if make is None or keep is None:
            return

        def process(*, data: Any, cast_to: Any, response: Any) -> Any:
            self._tapped = keep(data) or take(data)
            return make(data=data, cast_to=cast_to, response=response)

        with suppress(AttributeError):  # a stream of another make, which is read object by object
            stream._client = _Tapped(client, process)

    def read(self, chunks: Iterator[Any]) -> Iterator[Any]:
        take = self.take
        try:
            for chunk in chunks:
                tapped = self._tapped
                if tapped or (tapped is None and take(chunk)):
                    yield chunk
            self.finish(complete=True)
        finally:
            self.finish(complete=False)

    async def read_async(self, chunks: AsyncIterator[Any]) -> AsyncIterator[Any]:
        take = self.take
        try:
            async for chunk in chunks:
                tapped = self._tapped
                if tapped or (tapped is None and take(chunk)):
                    yield chunk
            self.finish(complete=True)
        finally:
            self.finish(complete=False)

    def closing(self, close: Callable[[], Any]) -> Callable[[], Any]:
        """Return a `close` that records first; where it is awaited, the caller awaits what it returns."""

        def record_and_close() -> Any:
            self.finish(complete=False)
            return close()

        return record_and_close

    def abandon(self) -> None:
        """Record it as far as it came."""
        self.finish(complete=False)

    def take(self, chunk: Any) -> bool:
        """Keep the next chunk, and hide in it what was not asked for; return whether the chunk itself was asked for
        (usage).
        """
        asked = self._asked
        try:
            if self._add(chunk, asked) or asked is None:
                return True
        except Exception as error:  # a shape that no server had so far
            self._broken = True
            self._call._guard.failed("chunk", error)
        try:
            return asked is None or self._shown(chunk, asked)
        except Exception as error:
            self._call._guard.failed("hide", error)
            return True

    def finish(self, *, complete: bool) -> None:
        """Record once, however often the stream ends."""
        self._call._guard.call("finish_stream", self._finish, complete, default=None)

    def _finish(self, complete: bool) -> None:
        call = self._call
        if call._done:
            return
        call._done = True
        call._episode.finished(self)
        call._record(self._accumulator.answer(complete=complete and not self._broken), streamed=True)
