"""A trace → the events of its episode, with the recorder's own vocabulary.

Ids come from the format and the trace's own ids, and times from the trace: the same trace gives the same bytes, so
assembly absorbs a second import. Scores are keyed rewards: they may come with the trace, or any time later without it.
"""

from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

from rollbus.producers.episode.open_calls import OpenCalls
from rollbus.producers.imports.formats.trace import (
    MS,
    NO_CONTENT,
    ImportedCall,
    ImportedScore,
    ImportedSpan,
    ImportedTool,
    Trace,
)
from rollbus.producers.imports.formats.tree import find_missing_parents, place_spans
from rollbus.producers.turns.answer import json_of, text_of, token_ids_of
from rollbus.producers.turns.prompt_log import PromptLog
from rollbus.producers.turns.redaction import Privacy, Redactor
from rollbus.producers.turns.turn_record import Exchange, drafts_of
from rollbus.schemas import ids
from rollbus.schemas.records.events import (
    AliasDeclared,
    EpisodeEnded,
    EpisodeStarted,
    Event,
    RewardReported,
    ToolCalled,
    TurnRecorded,
    WriterClosed,
)

NO_TOKEN_IDS = "no_token_ids"
FAILED_CALL = "failed_call"
"""Reason of a turn whose call ended in an error, without an answer."""
KEYED = -1
MAX_ERROR_CHARACTERS = 500
SESSION = "session"
"""Label under which the formats have a trace's session, thread or conversation."""
MOST_CHARACTERS = 4_000
"""Of the user's first message, in the record that links it to the turn before."""
NO_PRIVACY = Privacy()


def episode_id_of(format_name: str, trace_id: str) -> str:
    """Return the id of the episode that a trace becomes."""
    return ids.stable_id("imported", format_name, trace_id)


class ImportedEvent(NamedTuple):
    """An event of a trace."""

    event: Event
    principal: str
    """Head of the token that brought what it is made of; empty for the owner's."""


class EpisodeWriter:
    """Makes the events of one trace."""

    def __init__(
        self,
        trace: Trace,
        format_name: str,
        *,
        producer: str = "",
        task: str | None = None,
        privacy: Privacy = NO_PRIVACY,
        counts: Counter[str] | None = None,
    ) -> None:
        """Make nothing yet; `task` replaces the trace's name, `counts` counts the turns by verdict."""
        self._trace, self._format, self._privacy = trace, format_name, privacy
        self._producer, self._task = producer, task or trace.name
        self._counts = Counter[str]() if counts is None else counts
        self.episode_id = episode_id_of(format_name, trace.id)
        self._writer_id = f"import-{format_name}"
        self._sequence = 0
        self._started_ms = min((span.start_ns for span in trace.spans), default=0) // MS
        self._prompts, self._tools_sent, self._open_calls = PromptLog(), set[str](), OpenCalls()
        self._first_message: str | None = None
        """What the user said before the first turn."""
        self._turn_ids: dict[str, str] = {}
        """The first turn of each call's span."""

    def write(self) -> Iterator[ImportedEvent]:
        """Yield the events in order; only the scores where the trace has no span."""
        if self._trace.spans:
            yield from self._write_episode()
        else:
            yield from self._rewards()

    def _write_episode(self) -> Iterator[ImportedEvent]:
        trace = self._trace
        placed, wrappers = place_spans(trace.spans)
        ended_ms = max(max(span.start_ns, span.end_ns) for span in trace.spans) // MS
        labels = {**trace.labels, "format": self._format, "trace": trace.id}
        if SESSION in labels:
            labels.setdefault("conversation", labels[SESSION])
        if missing := find_missing_parents(trace.spans):
            labels["partial"] = f"{missing} spans name a parent that did not come"
        start_fields: dict[str, Any] = {
            "task": text_of(self._task) or "",
            "agent": text_of(trace.agent) or "",
            "example_id": text_of(trace.example_id),
            "labels": {text_of(name) or "": self._mask(value, "labels") or "" for name, value in labels.items()},
        }
        yield ImportedEvent(EpisodeStarted(**self._next(self._started_ms), **start_fields), trace.principal)
        for span, function in placed:
            if isinstance(span.content, ImportedCall):
                yield from (ImportedEvent(turn, span.principal) for turn in self._turns(span, span.content, function))
            elif isinstance(span.content, ImportedTool):
                yield ImportedEvent(self._tool(span, span.content), span.principal)
        yield from self._rewards()  # before the end: the trajectory then has them from its start
        if wrappers:
            self._counts["calls_seen_twice"] += wrappers
        self._counts["episodes"] += 1
        error = self._mask(trace.error, "errors")
        end_fields: dict[str, Any] = {
            "stop_reason": "error" if error else "completed",
            "error": error and error[:MAX_ERROR_CHARACTERS],
        }
        ending = EpisodeEnded(**self._next(ended_ms), writer_ids=(self._writer_id,), **end_fields)
        yield ImportedEvent(ending, trace.principal)
        yield ImportedEvent(WriterClosed(**self._next(ended_ms), count=self._sequence - 1), trace.principal)
        envelope = self._envelope(ids.stable_id("alias", trace.id, self.episode_id), KEYED, self._started_ms)
        yield ImportedEvent(AliasDeclared(**envelope, alias=trace.id), trace.principal)
        if session := text_of(trace.labels.get(SESSION)):
            alias = ids.conversation_name(session)
            envelope = self._envelope(ids.stable_id("alias", alias, self.episode_id), KEYED, self._started_ms)
            declared = AliasDeclared(**envelope, alias=alias, conversation=True, message=self._first_message)
            yield ImportedEvent(declared, trace.principal)

    def _rewards(self) -> Iterator[ImportedEvent]:
        for score in self._trace.scores:
            yield ImportedEvent(self._reward(score), score.principal)

    def _turns(self, span: ImportedSpan, call: ImportedCall, function: str) -> Iterator[TurnRecorded]:
        sampled = [token_ids_of(choice) for choice in call.answer.choices]
        unanswered = NO_CONTENT if span.error is None else FAILED_CALL
        withheld = None if sampled and all(sampled) else NO_TOKEN_IDS if sampled else unanswered
        withheld = call.answer.problem or withheld
        at_ms = max(span.start_ns, span.end_ns) // MS
        exchange = Exchange(
            request=call.request,
            answer=call.answer,
            streamed=call.streamed,
            latency_ms=at_ms - span.start_ns // MS,
            withheld=withheld,
        )
        for draft in drafts_of(exchange, self._privacy):
            if not self._turn_ids:
                words = (message.content for message in reversed(draft.prompt) if message.role == "user")
                self._first_message = (next(words, None) or "")[:MOST_CHARACTERS] or None
            split = self._prompts.send(draft.prompt, draft.completion)
            fields = {**draft.fields, "prefix_count": split.prefix_count, "prefix_hash": split.prefix_hash}
            if fields["tools_hash"] in self._tools_sent:
                fields["tools"] = None
            self._tools_sent.add(fields["tools_hash"])
            fields |= {"added_messages": split.added, "completion": draft.completion, "function": text_of(function)}
            reason = fields["untrainable_reason"]
            self._counts[f"turns_untrainable.{reason}" if reason else "turns_trainable"] += 1
            self._open_calls.add(draft.completion.tool_calls)
            envelope = self._next(at_ms)
            self._turn_ids.setdefault(span.id, envelope["event_id"])
            yield TurnRecorded(**envelope, **fields)

    def _tool(self, span: ImportedSpan, tool: ImportedTool) -> ToolCalled:
        at_ms = max(span.start_ns, span.end_ns) // MS
        self._counts["tools"] += 1
        error = self._mask(span.error, "errors")
        called = ToolCalled(
            **self._next(at_ms),
            name=text_of(tool.name) or "",
            tool_call_id=text_of(tool.call_id),
            arguments=self._mask(_as_text(tool.arguments), "tool_calls") or "",
            result=self._mask(_as_text(tool.result), "tool_calls"),
            error=error and error[:MAX_ERROR_CHARACTERS],
            latency_ms=at_ms - span.start_ns // MS,
        )
        return self._open_calls.complete(called)

    def _reward(self, score: ImportedScore) -> RewardReported:
        name = text_of(score.name) or "reward"
        event_id = ids.reward_event_id(self.episode_id, name, text_of(score.id) or "")
        self._counts["rewards"] += 1
        return RewardReported(
            **self._envelope(event_id, KEYED, score.at_ns // MS),
            name=name,
            value=score.value,
            source=text_of(score.source) or "user",
            turn_event_id=self._turn_ids.get(score.span_id or ""),  # of any other span it is the trace's
            comment=self._mask(text_of(score.comment), "comments"),
        )

    def _mask(self, text: str | None, field: Any) -> str | None:
        return Redactor(self._privacy).text(text_of(text), field)

    def _next(self, at_ms: int) -> dict[str, Any]:
        event_id = ids.event_id(self.episode_id, self._writer_id, self._sequence)
        envelope = self._envelope(event_id, self._sequence, at_ms)
        self._sequence += 1
        return envelope

    def _envelope(self, event_id: str, sequence: int, at_ms: int) -> dict[str, Any]:
        return {
            "event_id": event_id,
            "episode_id": self.episode_id,
            "root_episode_id": self.episode_id,
            "writer_id": self._writer_id,
            "sequence": sequence,
            "occurred_at_ms": at_ms,
            "episode_started_at_ms": self._started_ms,
            "producer": self._producer,
            "environment": text_of(self._trace.environment) or "",
        }


def _as_text(value: Any) -> str | None:
    return value if value is None or isinstance(value, str) else json_of(value)
