"""The turns of one answer, made when they are sent: not on the thread of the agent that waits for the answer.

The agent's thread only takes their places (sequence and time) and keeps the answer's parts. Redaction, the verdict on
the tokens, the split of the prompt and the encoding happen here, on the recorder's own thread, in the order of the
calls. A turn that cannot be made, or that is larger than a record may be, is sent with that reason and without content.
"""

from array import array
from collections.abc import Callable, Mapping
from typing import Any

from rollbus.producers.episode.open_calls import OpenCalls
from rollbus.producers.episode.outbox import Outbox
from rollbus.producers.turns.answer import ENTRY_BYTES, ID_BYTES, Unread, text_of
from rollbus.producers.turns.model_server import server_of
from rollbus.producers.turns.prompt_log import PromptLog
from rollbus.producers.turns.turn_record import Draft, Exchange, drafts_of
from rollbus.schemas import codec
from rollbus.schemas.records.drops import DropReason
from rollbus.schemas.records.events import Message, TurnRecorded

CAPTURE_FAILED = "capture_failed"
TOKEN_BYTES, LOGPROB_BYTES = 96, 32
"""About what a token's text and its log-prob take in memory, once read."""
OTHER_BYTES = 2048
"""About what the objects around them take."""


class TurnMemory:
    """What the turns of an episode and writer have already carried, so that the next one need not repeat it.

    Only the recorder's own thread uses it.
    """

    def __init__(self) -> None:
        """Begin with nothing sent."""
        self.calls = OpenCalls()
        self.forget()

    def forget(self) -> None:
        """Let the next turn carry its whole prompt and its tools; calls of tools stay open."""
        self.prompts = PromptLog()
        self.tools_sent: set[str] = set()


class LateTurns:
    """One per answer; `encode` is called once for each of its turns, in order."""

    __slots__ = ("_drafts", "_envelope", "_exchange", "_failed", "_function", "_memory", "_outbox")

    def __init__(
        self,
        outbox: Outbox,
        memory: TurnMemory,
        envelope: Callable[[int, int], dict[str, Any]],
        exchange: Exchange,
        function: str,
    ) -> None:
        """Make nothing yet; `envelope` returns the common fields of an event with this sequence and time."""
        self._outbox, self._memory, self._envelope = outbox, memory, envelope
        self._exchange, self._function = exchange, text_of(function) or ""
        self._drafts: list[Draft] | None = None
        self._failed = False

    def encode(self, index: int, sequence: int, at_ms: int) -> bytes:
        """Return a turn's bytes; its id, which is a hash, is made here too."""
        envelope = self._envelope(sequence, at_ms)
        draft = self._make_draft(index)
        if draft is None:
            return self._encode_failure(envelope)
        try:
            turn = self._make_turn(draft, envelope)
            data = codec.encode(turn)
        except Exception as error:
            self._outbox.guard.failed("record", error)
            self._memory.forget()  # what this turn was to carry, the next one sends
            return self._encode_failure(envelope)
        if len(data) > self._outbox.settings.max_record_bytes:
            self._memory.forget()
            return self._encode_failure(envelope, DropReason.TOO_LARGE.value)
        self._count_turn(turn)
        return data

    def _make_draft(self, index: int) -> Draft | None:
        if self._drafts is None and not self._failed:
            try:
                self._drafts = drafts_of(self._exchange, self._outbox.privacy)
            except Exception as error:  # a shape that no server had so far
                self._outbox.guard.failed("capture", error)
                self._failed = True
        return None if self._drafts is None else self._drafts[index]

    def _make_turn(self, draft: Draft, envelope: Mapping[str, Any]) -> TurnRecorded:
        if draft.redaction_error is not None:
            self._outbox.guard.failed("redact", draft.redaction_error)
        split = self._memory.prompts.send(draft.prompt, draft.completion)
        fields = {**draft.fields, "prefix_count": split.prefix_count, "prefix_hash": split.prefix_hash}
        if fields["tools_hash"] in self._memory.tools_sent:
            fields["tools"] = None
        fields |= {"added_messages": split.added, "completion": draft.completion, "function": self._function}
        self._memory.tools_sent.add(fields["tools_hash"])
        self._memory.calls.add(draft.completion.tool_calls)
        return TurnRecorded(**envelope, **fields)

    def _encode_failure(self, envelope: Mapping[str, Any], reason: str = CAPTURE_FAILED) -> bytes:
        """Return a turn that says in place of its content why it has none."""
        answer_model = getattr(self._exchange.answer, "model", None)
        model = text_of(answer_model) or text_of(self._exchange.request.get("model")) or ""
        turn = TurnRecorded(
            **envelope,
            model=model,
            completion=Message(role="assistant"),
            trainable=False,
            untrainable_reason=reason,
            function=self._function,
            server=server_of(self._exchange.server),
        )
        self._count_turn(turn)
        return codec.encode(turn)

    def _count_turn(self, turn: TurnRecorded) -> None:
        reason = turn.untrainable_reason
        self._outbox.first_turns.add(reason, self._exchange.server, self._exchange.hook)
        self._outbox.counts.add("turns_trainable" if reason is None else f"turns_untrainable.{reason}")
        if self._outbox.on_turn is not None:
            self._outbox.guard.call("on_turn", self._outbox.on_turn, turn, self._exchange.hook, default=None)


def expected_bytes(exchange: Exchange) -> int:
    """Return about how much memory a turn takes until it is made."""
    messages, answer = exchange.request.get("messages") or (), exchange.answer
    texts = sum([len(message.get("content") or "") for message in messages if message.__class__ is dict])
    if isinstance(answer, Unread):
        return OTHER_BYTES + texts + answer.size
    tokens = sum(
        len(choice.content or "")
        + ENTRY_BYTES * len(choice.entries)
        + TOKEN_BYTES * len(choice.tokens)
        + LOGPROB_BYTES * len(choice.logprobs)
        for choice in answer.choices
    )
    ids = answer.prompt_token_ids or ()
    return OTHER_BYTES + texts + tokens + (ids.itemsize if isinstance(ids, array) else ID_BYTES) * len(ids)
