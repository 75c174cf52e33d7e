"""One episode as this process sees it: turns, tools and rewards to events with ids and sequence numbers.

Every public method is safe to call at any time from any thread; what fails is counted. Where an event finds no room, or
is larger than a record may be, the whole episode is dropped: its queued events go, and if some were sent already, one
Excluded event says that the rest will not follow. A turn that is too large is sent without its content instead.
"""

import functools
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Protocol, TypedDict

from rollbus.producers.episode.functions import current_function
from rollbus.producers.episode.headers import (
    EPISODE_HEADER,
    FUNCTION_HEADER,
    NOT_SAMPLED,
    STARTED_HEADER,
    header_text,
)
from rollbus.producers.episode.late_turns import OTHER_BYTES, LateTurns, TurnMemory, expected_bytes
from rollbus.producers.episode.outbox import Outbox, address_of, root_of
from rollbus.producers.episode.rewards import (
    KEYED,
    MAX_MESSAGE_CHARACTERS,
    complete_report,
    encodable_texts,
    hosts_name,
    last_words,
    nonempty_text,
    reward_value,
    send_reward,
)
from rollbus.producers.episode.tracing import TRACEPARENT
from rollbus.producers.turns.answer import count_of, readable_text, text_of
from rollbus.producers.turns.turn_record import Exchange, exchange_of
from rollbus.schemas import codec, ids
from rollbus.schemas.errors import RecordTooLargeError
from rollbus.schemas.records.drops import DropReason
from rollbus.schemas.records.events import (
    AliasDeclared,
    EpisodeEnded,
    EpisodeStarted,
    Event,
    Excluded,
    RewardReported,
    Signal,
    StopReason,
    ToolCalled,
    WriterClosed,
)
from rollbus.schemas.topics import ALIASES

MAX_ERROR_CHARACTERS = 500
QUEUE_FULL = "queue_full"
MAX_CHARACTER_BYTES = 8
"""Of a record: UTF-8 takes 4 at most. The rest is room for the arguments as the model wrote them, with more spaces."""
MISS_KINDS = ("calls_outside_episode", "hook_errors")
"""Why an episode may lack something: calls in no episode, or failures of ours, while it was open."""


class ToolFields(TypedDict, total=False):
    """What `Episode.tool` takes in addition to the tool's name."""

    arguments: Any
    result: Any
    error: str | None
    tool_call_id: str | None
    latency_ms: int | None


class Abandonable(Protocol):
    """A call that waits for its answer, or a stream that is still being read."""

    def abandon(self) -> None:
        """Record the answer as far as it came."""


class Episode:
    """A handle on one episode; `Recorder.episode`, `start` and `attach` make it."""

    def __init__(
        self,
        outbox: Outbox,
        episode_id: str,
        *,
        task: str = "",
        writer_id: str,
        started_at_ms: int,
        sampled: bool = True,
        owner: bool = True,
        parent: "Episode | None" = None,
    ) -> None:
        """Write nothing yet; `begin` does."""
        self.id, self.root_id, self.task, self.parent = episode_id, root_of(episode_id), task, parent
        self._address = address_of(episode_id)
        self.started_at_ms, self.sampled = started_at_ms, sampled
        self.dropped = False
        """True once it found no room: nothing more of it is sent."""
        self.ended = False
        self.recording = sampled
        """Whether events of it are still taken: it is sampled, and neither dropped nor ended."""
        self.calls_captured = 0
        """Calls of recorded clients so far: a hook above learns from it that its call is recorded."""
        self.is_placeholder = False
        """Whether it is a handle without an episode, which hides no episode around it."""
        self.is_of_one_call = False
        """Whether it was opened for a single call, and ends with it."""
        self.function = ""
        """As the headers of another process name it; for calls that no `function` block here names."""
        self.traceparent: str | None = None
        self.labels: Mapping[str, str] = {}
        """As its start has them; empty for an episode of another process."""
        self.outbox = outbox
        self.owner = owner
        """Whether this process started the episode."""
        self._writer_id, self._sequence = writer_id, 0
        self._other_writers: set[str] = set()
        self.memory = TurnMemory()
        """What its turns have carried; only the delivery thread uses it."""
        self._conversation: str | None = None
        """The alias of its conversation, until this episode is declared as the next one of it."""
        self._open_answers: dict[Abandonable, None] = {}
        self._misses_at_start = self._count_misses()
        self._lock = threading.RLock()

    def ancestry(self) -> "Iterator[Episode]":
        """Yield the episode, and those around it outwards."""
        episode: Episode | None = self
        while episode is not None:
            yield episode
            episode = episode.parent

    def reward(
        self,
        value: float | None,
        *,
        name: str = "reward",
        key: str | None = None,
        turn: str | None = None,
        source: str = "agent",
        supersedes: str | None = None,
        retracted: bool = False,
        comment: str | None = None,
        signal: Signal = "",
    ) -> str | None:
        """Report what the episode, or one turn of it, is worth; return the event's id.

        The same `key` again is the same report. After the episode's end this is `Recorder.feedback`. In place of a
        value `signal` says what the user did next, with their words as the comment; words alone are a `reply`. An
        episode with rewards under several names is worth their mean, until the settings list those that count.
        """
        fields = {
            "name": name,
            "signal": signal,
            "value": value,
            "turn_event_id": turn,
            "source": source,
            "supersedes": supersedes,
            "retracted": retracted,
        }
        return self.outbox.guard.call("reward", self._reward, fields, key, comment, default=None)

    def tool(
        self,
        name: str,
        *,
        arguments: Any = "",
        result: Any = None,
        error: str | None = None,
        tool_call_id: str | None = None,
        latency_ms: int | None = None,
    ) -> str | None:
        """Record a tool call; return the event's id. Values that are not text are written as JSON."""
        fields = {
            "name": text_of(str(name)),
            "tool_call_id": None if tool_call_id is None else text_of(str(tool_call_id)),
            "latency_ms": latency_ms,
        }
        return self.outbox.guard.call("tool", self._tool, fields, arguments, result, error, default=None)

    def alias(self, alias: str) -> None:
        """Let feedback find this episode by another name, such as an order number."""
        self.outbox.guard.call("alias", self._alias, alias, default=None)

    def exclude(self, reason: str = "") -> None:
        """Keep this episode out of training, also after its end."""
        self.outbox.guard.call("exclude", self._exclude, reason, default=None)

    def headers(self) -> dict[str, str]:
        """Return what to send along to another process, for its `attach`."""
        return self.outbox.guard.call("headers", self._headers, default={})

    def _headers(self) -> dict[str, str]:
        if not self.sampled or self.dropped:
            return dict(NOT_SAMPLED) if self.outbox.settings.enabled and not self.is_placeholder else {}
        headers = {EPISODE_HEADER: header_text(self.id), STARTED_HEADER: str(self.started_at_ms)}
        if function := current_function() or self.function:
            headers[FUNCTION_HEADER] = header_text(function)
        if self.traceparent is not None:
            headers[TRACEPARENT] = self.traceparent
        return headers

    def end(self, stop_reason: StopReason = "completed", error: str | None = None) -> None:
        """Say that the agent's run is over; streams still open are recorded as abandoned. Rewards may follow.

        The error's text is cut after `MAX_ERROR_CHARACTERS`.
        """
        self.outbox.guard.call("end", self._end, stop_reason, error, default=None)

    def pause(self, name: str) -> None:
        """Leave the episode open for another writer, which finds it by this name; see `Recorder.pause`."""
        self.outbox.guard.call("pause", self._pause, name, default=None)

    def take_over(self, paused: "Episode") -> None:
        """Go on with what this process has paused."""
        self.started_at_ms, self.labels, self.traceparent = paused.started_at_ms, paused.labels, paused.traceparent
        self._other_writers.update(paused.writer_ids)

    def begin(self, fields: Mapping[str, Any]) -> None:
        """Write the start; for the recorder. A sub-agent's episode has its parent's labels, and its own over them."""
        inherited = self.parent.labels if self.parent else {}
        labels = {name: value for name, value in inherited.items() if name != TRACEPARENT} | {
            text_of(str(key)) or "": self.outbox.redacted(readable_text(value), "labels") or ""
            for key, value in (fields.get("labels") or {}).items()
        }
        if self.traceparent is not None:
            labels.setdefault(TRACEPARENT, self.traceparent)
        self.labels = labels
        parent_id = self.parent.id if self.parent else None
        fields = dict(fields)
        conversation, message = fields.pop("conversation", None), fields.pop("message", None)
        if conversation is not None and self.parent is None:
            self._conversation = ids.conversation_name(conversation)
            labels["conversation"] = self.outbox.redacted(conversation, "labels") or ""
        self.emit(EpisodeStarted, {**fields, "task": self.task, "labels": labels, "parent_episode_id": parent_id})
        if message is not None:
            self._join_conversation(message)

    def turn(
        self,
        *,
        messages: Sequence[Any],
        answer: str | Mapping[str, Any],
        token_ids: Sequence[int] | None = None,
        logprobs: Sequence[float] | None = None,
        prompt_token_ids: Sequence[int] | None = None,
        model: str = "",
        tools: Sequence[Any] | None = None,
        finish_reason: str | None = "stop",
        temperature: float | None = None,
        function: str | None = None,
        at: datetime | int | None = None,
    ) -> None:
        """Record a model's answer that no client here has seen, of any other SDK or an engine in this process.

        `messages` and `tools` have the OpenAI form, `answer` is a text or such a message. Only with the ids of the
        prompt, the sampled ids with their log-probs, and the temperature can the turn be trained; nothing else may have
        changed the distribution. `at` is when it came (milliseconds, or a time with its zone); now by default.
        """
        fields = (messages, answer, token_ids, logprobs, prompt_token_ids, model, tools, finish_reason, temperature)
        self.outbox.guard.call("turn", self._turn, fields, function, at, default=None)

    def _turn(self, fields: tuple[Any, ...], function: str | None, at: datetime | int | None) -> None:
        if isinstance(at, datetime) and at.tzinfo is None:
            raise ValueError(f"at is {at.isoformat()}: say in which zone")
        at_ms = int(at.timestamp() * 1000) if isinstance(at, datetime) else at
        exchange = exchange_of(*fields, logprob_mode=self.outbox.settings.logprob_mode)
        self.record(exchange, function or current_function() or self.function, at_ms=at_ms)

    def record(self, exchange: Exchange, function: str, *, at_ms: int | None = None) -> None:
        """Take the places of an answer's turns; they are made in the delivery thread."""
        outbox = self.outbox
        if self._conversation is not None:
            self._join_conversation(last_words(exchange.request))
        if outbox.delivery.crowded:
            exchange = exchange.with_answer_read()
        turns = LateTurns(outbox, self.memory, self.late_envelope, exchange, function)
        size = expected_bytes(exchange)
        with self._lock:
            if not self.recording:
                self.outbox.counts.add("turns_suppressed")
                return
            for index in range(exchange.turns):
                at_ms = outbox.clock_ms() if at_ms is None else at_ms
                encode = functools.partial(turns.encode, index, self._sequence, at_ms)
                if not self._submit_late(encode, size, at_ms):
                    return

    def _reward(self, fields: dict[str, Any], key: str | None, comment: str | None) -> str | None:
        fields = {
            **complete_report(fields, comment),
            "value": reward_value(fields["value"]),
            "comment": self.outbox.redacted(comment, "comments"),
        }
        if self.sampled and (key is not None or self.ended):
            return send_reward(self.outbox, self.id, None, fields, key, self.started_at_ms)
        return self.emit(RewardReported, fields)

    def _tool(self, fields: dict[str, Any], arguments: Any, result: Any, error: str | None) -> str | None:
        outbox, latency_ms = self.outbox, fields["latency_ms"]
        if latency_ms is not None:  # a measured time may be a float; what is not a number raises here
            fields["latency_ms"] = count_of(int(latency_ms))
        texts = {
            "arguments": outbox.redacted(readable_text(arguments), "tool_calls") or "",
            "result": outbox.redacted(readable_text(result), "tool_calls"),
            "error": outbox.redacted_error(readable_text(error)),
        }
        size = sum(len(text or "") for text in texts.values())
        if fields["tool_call_id"] is not None or size > outbox.settings.max_record_bytes // MAX_CHARACTER_BYTES:
            return self.emit(ToolCalled, {**fields, **texts})
        return self._emit_tool(encodable_texts({**fields, **texts}), size)

    def _emit_tool(self, fields: Mapping[str, Any], size: int) -> str | None:
        """Write a tool that does not say which call of the model it is, once the answers before it are read."""
        with self._lock:
            if not self.recording:
                self.outbox.counts.add("events_suppressed")
                return None
            memory, at_ms = self.memory, self.outbox.clock_ms()
            tool = ToolCalled(**self.late_envelope(self._sequence, at_ms), **fields)

            def encode() -> bytes:
                return codec.encode(self.outbox.guard.call("call_id", memory.calls.complete, tool, default=tool))

            return tool.event_id if self._submit_late(encode, OTHER_BYTES + size, at_ms) else None

    def _submit_late(self, encode: Callable[[], bytes], size: int, at_ms: int) -> bool:
        """Take the next place for an event that is made later; False where there was no room, which drops all."""
        if not self.outbox.submit_late(*self._address, encode, episode_id=self.id, size=size, at_ms=at_ms):
            self._drop(QUEUE_FULL)
            return False
        self._sequence += 1
        return True

    def _alias(self, alias: str) -> None:
        alias = hosts_name(alias, ids.PAUSE_PREFIX, ids.CONVERSATION_PREFIX)
        if not self.sampled or self.dropped:
            return
        if self.root_id.startswith(ids.PAUSE_PREFIX):
            raise ValueError(
                "an episode that another process has paused gets its aliases there: its id is not known here"
            )
        fields = self._envelope(ids.stable_id("alias", alias, self.id), KEYED)
        self.outbox.submit(ALIASES, alias, AliasDeclared(**fields, alias=alias), episode_id="")

    def _join_conversation(self, message: Any) -> None:
        """Declare this episode as the next one of its conversation, once."""
        with self._lock:
            alias, self._conversation = self._conversation, None
        if alias is None or not self.sampled or self.dropped:
            return
        fields = self._envelope(ids.stable_id("alias", alias, self.id), KEYED)
        words = self.outbox.redacted(text_of(message), "messages")
        if words is not None:
            words = words[:MAX_MESSAGE_CHARACTERS]
        declaration = AliasDeclared(**fields, alias=alias, conversation=True, message=words)
        self.outbox.submit(ALIASES, alias, declaration, episode_id="")

    def _exclude(self, reason: str) -> None:
        reason = self.outbox.redacted(text_of(reason), "comments") or ""
        if not self.ended or not self.sampled or self.dropped:
            self.emit(Excluded, {"reason": reason})
            return
        envelope = self._envelope(ids.stable_id("exclude", self.id, self._writer_id), KEYED)
        self.outbox.submit(*self._address, Excluded(**envelope, reason=reason), episode_id="")

    def end_if_of_one_call(self) -> None:
        """End an episode that was opened for a single call."""
        if self.is_of_one_call:
            self.end()

    def _pause(self, name: str) -> None:
        alias = ids.pause_name(nonempty_text(name))
        self._abandon_open_answers()
        if self.recording and self.owner:
            fields = self._envelope(ids.stable_id("alias", alias, self.id, self._writer_id), KEYED)
            self.outbox.submit(ALIASES, alias, AliasDeclared(**fields, alias=alias), episode_id="")
            self.close_writer(paused=True)

    def _abandon_open_answers(self) -> None:
        for answer in tuple(self._open_answers):
            answer.abandon()
        if self.recording and self.owner:
            self._join_conversation(None)

    def _end(self, stop_reason: StopReason, error: str | None) -> None:
        self._abandon_open_answers()
        with self._lock:
            if not self.recording:
                return
            if self.owner:
                error_text = self.outbox.redacted_error(text_of(error))
                if error_text is not None:  # cut after redaction, which would not recognise half a secret
                    error_text = error_text[:MAX_ERROR_CHARACTERS]
                writers = tuple(sorted({self._writer_id, *self._other_writers}))
                self.emit(EpisodeEnded, {"stop_reason": stop_reason, "error": error_text, "writer_ids": writers})
            self.close_writer()

    def close_writer(self, *, even_if_silent: bool = False, paused: bool = False) -> None:
        """Say how many events this process wrote; nothing of it may follow, but another writer's if it is paused."""
        with self._lock:
            if self.recording and (self._sequence or even_if_silent):
                misses = zip(MISS_KINDS, self._misses_at_start, self._count_misses(), strict=True)
                partial = tuple(kind for kind, at_start, now in misses if now > at_start)
                self.emit(WriterClosed, {"count": self._sequence, "partial": partial, "paused": paused})
            self.ended, self.recording = True, False

    def _count_misses(self) -> tuple[int, int]:
        """Return how much this process has missed so far, by kind: it cannot say of which episode."""
        return self.outbox.counts.get(MISS_KINDS[0]), self.outbox.guard.failure_count

    def emit(self, record: type[Event], fields: Mapping[str, Any]) -> str | None:
        """Write the next event of this writer and return its id; None where the episode is not recorded (any more)."""
        with self._lock:
            if not self.recording:
                self.outbox.counts.add("events_suppressed")
                return None
            event_id = ids.event_id(self.id, self._writer_id, self._sequence)
            event = record(**self._envelope(event_id, self._sequence), **encodable_texts(fields))
            try:
                queued = self.outbox.submit(*self._address, event, episode_id=self.id)
            except RecordTooLargeError:
                self._drop(DropReason.TOO_LARGE.value)
                return None
            if not queued:
                self._drop(QUEUE_FULL)
                return None
            self._sequence += 1
            return event_id

    def _drop(self, reason: str) -> None:
        purged = self.outbox.purge(self.id, reason)
        self.outbox.counts.add(f"episodes_dropped.{reason}")
        if self._sequence > purged:
            event_id = ids.event_id(self.id, self._writer_id, self._sequence)
            excluded = Excluded(**self._envelope(event_id, self._sequence), reason=f"producer_{reason}")
            self.outbox.submit(*self._address, excluded, episode_id="", urgent=True)
        self.dropped, self.recording = True, False

    def late_envelope(self, sequence: int, at_ms: int) -> dict[str, Any]:
        """Return the envelope of an event whose place was taken before."""
        return self._envelope(ids.event_id(self.id, self._writer_id, sequence), sequence, at_ms)

    def _envelope(self, event_id: str, sequence: int, at_ms: int | None = None) -> dict[str, Any]:
        return self.outbox.envelope(
            event_id=event_id,
            episode_id=self.id,
            writer_id=self._writer_id,
            sequence=sequence,
            started_at_ms=self.started_at_ms,
            at_ms=at_ms,
        )

    def add_open_answer(self, answer: Abandonable) -> None:
        """Remember an answer that is not complete, so that the end of the episode records what came of it."""
        self._open_answers[answer] = None

    def remove_open_answer(self, answer: Abandonable) -> None:
        """Forget an answer that is recorded, or that another writer records."""
        self._open_answers.pop(answer, None)

    def forget_open_answers(self) -> None:
        """Leave what is still being read to another writer."""
        self._open_answers.clear()

    def add_writer(self, writer_id: str) -> None:
        """Remember another writer of this process, for the episode's end to name."""
        self._other_writers.add(writer_id)

    @property
    def writer_ids(self) -> tuple[str, ...]:
        """The writers of this process that have written anything; for another process that ends the episode."""
        return tuple(sorted({*self._other_writers, *([self._writer_id] if self._sequence else [])}))

    def discard_writer(self, late: "Episode") -> None:
        """Do without a late writer of this episode that has nothing to write."""
        with self._lock:
            if self.ended:
                late.close_writer(even_if_silent=True)
            else:
                self._other_writers.discard(late._writer_id)
                late.ended, late.recording = True, False

    def after_fork(self, writer_id: str) -> None:
        """Go on in a child process under another writer; the parent ends the episode."""
        self._lock = threading.RLock()
        self._writer_id, self._sequence, self.owner = writer_id, 0, False
        self.memory = TurnMemory()  # the parent's delivery thread may have been in the middle of it
        self._open_answers = {}

    def __repr__(self) -> str:
        """Name the episode, nothing of its content."""
        return f"<Episode {self.id} task={self.task!r}>"
