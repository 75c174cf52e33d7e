"""One call of a model over HTTP, from the request as the application made it to the recorded turns.

Before: asks the server for log-probs and token ids too. After: keeps the answer's bytes for the record. Every step is
guarded; where one fails the application's own request goes out and its own answer comes back.
"""

import asyncio
import json
import time
from collections.abc import Callable, Mapping
from contextvars import Token
from dataclasses import dataclass, field
from typing import Any

from rollbus.producers.capture.attributes import dump
from rollbus.producers.capture.hidden_fields import Cut, make_cut
from rollbus.producers.capture.surface import ADDED, Surface
from rollbus.producers.capture.without_tokens import google_field
from rollbus.producers.episode import context
from rollbus.producers.episode.episode import Abandonable, Episode
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
MAX_REFUSED_KINDS = 1000
"""Kinds of request remembered as refused."""
MAX_CHOICES = 128
NOTHING: frozenset[str] = frozenset()
RefusedByKind = dict[tuple[object, ...], frozenset[str]]
"""By kind of request (server, API, model, streamed, with tools), what of `ADDED` the server refuses."""


@dataclass(slots=True)
class Capture:
    """What the calls of one client, or of all of a process, share."""

    outbox: Outbox
    episodes: OpenEpisodes
    episode: Episode | None
    function: str | Callable[[], str] | None
    mode: str
    hide_injected: bool
    refused_by_kind: RefusedByKind = field(default_factory=dict)
    """What servers have refused, by kind of request."""
    hook: str = "wrap"
    """Named in what is recorded; see `Exchange.hook`."""

    def begin(
        self, request: dict[str, Any], surface: Surface, server: str, content: bytes | None = None
    ) -> "RecordedCall | None":
        """Return the call to observe; None where it belongs to no recorded episode, or cannot be observed.

        `content` is the body that `request` was read from.
        """
        try:
            if self.episodes.gives_way and context.recorded_by() not in (None, self.outbox):
                self.outbox.counts.add("calls_of_own_recorder")
                return None
            attempts = context.current_attempts()
            failed_attempt: RecordedCall | None = None if attempts is None else attempts.failed
            episode = failed_attempt.episode if failed_attempt else self.episode or self.episodes.current()
            if episode is None or episode.ended:  # such as a thread that works on
                episode = self.episodes.open_for_call()
            if episode is None:
                around = context.current_episode()
                if around is None or around.outbox is self.outbox:  # of another recorder, it is recorded there
                    self.outbox.count_call_outside()
                return None
            if not episode.recording:
                return None
            if not surface.is_recorded(request):
                self._note_unobserved(episode, request, server)
                return None
            unrouted: dict[str, Any] = request
            if (add_version := self.outbox.add_version) is not None:
                routed: Mapping[str, Any] = unrouted
                routed = self.outbox.guard.call("route", add_version, unrouted, episode.id, default=routed)
                request = unrouted if routed is unrouted else dict(routed)
            call = RecordedCall(self, episode, request, surface, server, unrouted, content)
            if failed_attempt is not None:
                episode.remove_open_answer(failed_attempt)
            episode.add_open_answer(call)
            episode.calls_captured += 1
            context.mark_captured()
            if self.episodes.spans is not None:
                self.episodes.spans.mark_captured()
            return call
        except Exception as error:  # the host's call goes on, unrecorded
            self.outbox.guard.failed("begin", error)
            return None

    def _note_unobserved(self, episode: Episode, request: Mapping[str, Any], server: str) -> None:
        """Record that a call was made in a form that is not recorded."""
        self.outbox.counts.add("calls_unobserved")
        exchange = Exchange(
            request={"model": request.get("model")},
            answer=ServerAnswer(),
            withheld=NOT_CAPTURED,
            hook=self.hook,
            server=server,
        )
        episode.record(exchange, current_function() or episode.function)
        episode.end_if_of_one_call()


@dataclass(slots=True)
class RefusalError(Exception):
    """An answer of the server that says what it does not accept."""

    status_code: int
    body: str


class RecordedCall:
    """One request and what became of it."""

    __slots__ = (
        "_capture",
        "_content",
        "_done",
        "_function",
        "_is_late",
        "_refused",
        "_refused_before",
        "_server",
        "_start_s",
        "_unrouted",
        "episode",
        "guard",
        "original",
        "request",
        "surface",
    )

    def __init__(
        self,
        capture: Capture,
        episode: Episode,
        request: dict[str, Any],
        surface: Surface,
        server: str,
        unrouted: dict[str, Any],
        content: bytes | None,
    ) -> None:
        """Ask for more than the request does; `unrouted` names the model as the application did."""
        self._unrouted = None if unrouted is request else unrouted
        self._start_s = time.perf_counter()
        self._capture, self.episode, self.surface, self._server = capture, episode, surface, server
        self.guard = capture.outbox.guard
        function_name = capture.function() if callable(capture.function) else capture.function
        self._function = function_name or current_function() or episode.function
        self.original, self._content = request, content if self._unrouted is None else None
        self._refused_before: frozenset[str] = (
            capture.refused_by_kind.get(self._kind(), NOTHING) if capture.refused_by_kind else NOTHING
        )
        self._refused = self._refused_before
        self._done = self._is_late = False
        self.request = self._with_injections()

    def _kind(self) -> tuple[object, ...]:
        request = self.original
        return self._server, self.surface, str(request.get("model")), self.is_streamed, bool(request.get("tools"))

    def _with_injections(self) -> dict[str, Any]:
        """Return the request to send."""
        if self._capture.mode == "passive":
            return self.original
        added = self.surface.add_wishes(self.original, force=self._capture.mode == "force", refused=self._refused)
        return {**self.original, **added} if added else self.original

    @property
    def is_streamed(self) -> bool:
        """Whether the application asks for a stream."""
        return self.original.get("stream") is True

    def body(self) -> bytes:
        """Return the request's JSON: the application's own bytes, with what is added behind its last field.

        It is written again where a field of the application's changes, or where its bytes are in another encoding.
        """
        content, original = self._content, self.original
        if content is None:
            return dump(self.request)
        if self.request is original:
            return content
        added = {name: value for name, value in self.request.items() if original.get(name, self) is not value}
        is_utf8 = json.detect_encoding(content) in ("utf-8", "utf-8-sig")
        if original and is_utf8 and added.keys().isdisjoint(original):
            return content.rstrip()[:-1] + b"," + dump(added)[1:]
        return dump(self.request)

    def begin_request(self) -> Token[object]:
        """Let a recorder beneath know that this call is recorded; `context.end_recorded` takes it back."""
        return context.begin_recorded(self._capture.outbox)

    def retry(self, error: BaseException) -> bool:
        """Say whether to call again without something that we have added, because the server refuses it; else the
        call has failed.
        """
        for name, drop in (("route", self._drop_route), ("refused", self._drop_refused)):
            if isinstance(error, Exception) and self.guard.call(name, drop, error, default=False):
                return True
        self.on_error(error)
        return False

    def _drop_route(self, error: Exception) -> bool:
        """Ask for the application's own name, where the server does not have the version that was chosen."""
        if self._unrouted is None or getattr(error, "status_code", None) != NO_SUCH_MODEL:
            return False
        self._capture.outbox.counts.add("route_unknown")
        self.original, self._unrouted = self._unrouted, None
        self.request = self._with_injections()
        return True

    def _drop_refused(self, error: Exception) -> bool:
        """Ask for less, where the error says that the server refuses some of it."""
        status = getattr(error, "status_code", None)
        if self.request is self.original or status is None:
            return False
        text = getattr(error, "body", "").lower()
        refused_extras = _refused_in(text, named_only=status not in REFUSAL_STATUSES) - self._refused
        if not refused_extras:
            return False
        self._refused |= refused_extras
        refused_request, self.request = self.request, self._with_injections()
        return self.request != refused_request

    def on_answer(self) -> None:
        """Remember what the server refuses, once it has answered without it.

        An error that names it is not enough: servers repeat the request in errors about something else.
        """
        if self._refused is not self._refused_before:
            self.guard.call("refused", self._remember_refused, default=None)

    def _remember_refused(self) -> None:
        kind, refused_by_kind = self._kind(), self._capture.refused_by_kind
        if kind in refused_by_kind or len(refused_by_kind) < MAX_REFUSED_KINDS:
            refused_by_kind[kind] = refused_by_kind.get(kind, NOTHING) | self._refused
        for name in sorted(self._refused - self._refused_before):
            self._capture.outbox.counts.add(f"{name}_refused")

    def on_error(self, error: BaseException | None = None) -> None:
        """Count and record a call that gave no answer, unless the client tries again."""
        if (attempts := context.current_attempts()) is not None:
            attempts.failed = self
            return
        self.fail(error)

    def fail(self, error: BaseException | None) -> None:
        """Count and record a call that gave no answer."""
        self._capture.outbox.counts.add("calls_failed")
        self.guard.call("failed", self.record_without_answer, failure_of(error), default=None)

    def record_without_answer(self, reason: str) -> None:
        """Record a call that gave no answer, and why."""
        if not self._done:
            self._record(ServerAnswer(), streamed=self.is_streamed, withheld=reason)

    def record_answer(self, make: Callable[[Any], ServerAnswer], pieces: list[bytes], *, streamed: bool) -> None:
        """Record an answer, which is made of its bytes when there is time."""
        size = sum(map(len, pieces))
        self._record(Unread(make, pieces, self._choices(), size), streamed=streamed)

    def _choices(self) -> int:
        settings = google_field(self.original, "generationConfig")
        count = google_field(settings, "candidateCount") if isinstance(settings, Mapping) else self.original.get("n")
        return count if isinstance(count, int) and 1 <= count <= MAX_CHOICES else 1

    def abandon(self) -> None:
        """Go on without the episode, which ends before the answer came.

        The first time, the call joins the episode by a writer of its own: it records the answer later, and the
        episode's end waits for it. If that writer is ended too, the call is recorded without an answer.
        """
        if self._is_late:
            self.record_without_answer(NOT_CAPTURED)
            return
        episode, self._is_late = self.episode, True
        episode.remove_open_answer(self)
        self.episode = self._capture.episodes.join(episode.id, episode.started_at_ms)
        self.episode.is_of_one_call = True
        self.episode.add_open_answer(self)
        self._capture.outbox.counts.add("calls_ended_late")

    def open(self, answer: Abandonable) -> None:
        """Let the episode's end record a stream as far as it came, in place of this call without an answer."""
        self.episode.remove_open_answer(self)
        self.episode.add_open_answer(answer)

    def close(self, answer: Abandonable) -> None:
        """Let the episode's end leave a stream alone, which has been read."""
        self.episode.remove_open_answer(answer)

    def _record(self, answer: ServerAnswer | Unread, *, streamed: bool, withheld: str | None = None) -> None:
        self._done = True
        self.episode.remove_open_answer(self)
        exchange = Exchange(
            request=self.surface.convert_request({**self.original, **settings_sent(self.request)}),
            answer=answer,
            streamed=streamed,
            withheld=withheld,
            latency_ms=int((time.perf_counter() - self._start_s) * 1000),
            refused=self._refused,
            logprob_mode=self._capture.outbox.settings.logprob_mode,
            hook=self._capture.hook,
            server=self._server,
        )
        self.episode.record(exchange, self._function)
        self.episode.end_if_of_one_call()

    def cut(self, *, is_stream: bool) -> Cut | None:
        """Return what takes out of the answer what the application did not ask for; None where it asked for all."""
        if not self._capture.hide_injected or self.request is self.original:
            return None
        wishes = self.surface.read_wishes(self.original)
        wishes.usage = wishes.usage or not is_stream
        return make_cut(wishes, self.surface.empty_logprobs)


def failure_of(error: BaseException | None) -> str:
    """Return the reason of a turn whose call ended in an error."""
    if isinstance(error, asyncio.CancelledError | GeneratorExit | KeyboardInterrupt):
        return "call_cancelled"
    is_timeout = isinstance(error, TimeoutError) or "Timeout" in type(error).__name__
    return "call_timed_out" if is_timeout else "call_failed"


def _refused_in(text: str, *, named_only: bool) -> frozenset[str]:
    """Return what of `ADDED` a refusal is about: what it names.

    One that names nothing of it and uses a word of a refusal is about all of it; with `named_only`, about nothing.
    """
    named_extras = frozenset(name for name, words in ADDED.items() if any(word in text for word in words))
    if named_extras or named_only:
        return named_extras
    return frozenset(ADDED) if any(word in text for word in REFUSAL_WORDS) else NOTHING
