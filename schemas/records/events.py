"""Facts of an episode, as producers write them to `episode-events` and `aliases`.

An event is immutable and ordered by (writer, sequence) within its episode.
`occurred_at_ms` merges the events of several writers and reports. It closes nothing, and it does not order rewards:
their order is the broker's.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from rollbus.schemas.errors import InvalidRecordError
from rollbus.schemas.records.tokens import token_count

StopReason = Literal["completed", "max_turns", "max_tokens", "timeout", "error"]
Signal = Literal["", "reply", "retry", "edit", "escalation", "silence"]
"""What a user did after a turn, where that is all that a report says; empty where the report gives a value."""
LogprobMode = Literal["raw", "processed", "unknown"]
"""raw: at temperature 1, before penalties and top-p; processed: of the distribution sampled from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """The envelope that every event carries."""

    event_id: str
    """uuid5 of (episode, writer, sequence), or of the caller's key for rewards."""
    episode_id: str
    """Of a reward by alias it is empty, and of events that resume an episode it may be the name of its pause: the alias
    stage fills in the id."""
    root_episode_id: str
    """The outermost parent: the Kafka key, so a sub-agent's events share its root's partition."""
    writer_id: str
    """New per process start, fork and attach."""
    sequence: int
    """Counts from 0 within (episode, writer); −1 if the id comes from the caller's key."""
    occurred_at_ms: int
    episode_started_at_ms: int
    producer: str = ""
    environment: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One chat message."""

    role: str
    content: str | None = None
    name: str | None = None
    tool_call_id: str | None = None
    tool_calls: str | None = None
    """JSON list of the OpenAI form, as received."""
    parts: str | None = None
    """JSON list of content parts, if the content is not plain text."""
    reasoning: str | None = None
    """Reasoning text that the server returned in addition to the content."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeStarted(Event):
    """An agent begins one run on one task."""

    task: str
    agent: str = ""
    example_id: str | None = None
    group_id: str | None = None
    """Explicit group: attempts at the same problem, made to be compared."""
    group_size: int | None = None
    """How many attempts an explicit group is declared to have."""
    labels: Mapping[str, str] = field(default_factory=dict)
    parent_episode_id: str | None = None
    resampled: bool = False
    """True if the attempt was made to fill a group, not by production traffic."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnRecorded(Event):
    """One model generation: what was added to the prompt, what was sampled, and by which weights."""

    function: str = ""
    """The part of the agent that asked, for `target_functions`."""
    model: str
    """As the answer names it."""
    policy_version: int | None = None
    """Number of the weights that sampled it, from `name@version`; None if the answer does not name them."""
    response_id: str | None = None
    choice: int = 0
    prefix_count: int = 0
    """Messages of the prompt that an earlier turn of this episode already carried."""
    prefix_hash: str = ""
    """Hash of those messages; another hash than before means an edited history."""
    added_messages: tuple[Message, ...] = ()
    """The messages of the prompt after the prefix."""
    completion: Message
    prompt_token_ids: bytes | None = None
    """int32 little-endian, the whole prompt as the server tokenised it."""
    completion_token_ids: bytes | None = None
    """int32 little-endian, as sampled."""
    logprobs: bytes | None = None
    """float32 little-endian, one per completion token."""
    logprob_mode: LogprobMode = "unknown"
    temperature: float | None = None
    top_p: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    seed: int | None = None
    max_tokens: int | None = None
    finish_reason: str | None = None
    tools_hash: str = ""
    """Hash of the tool schemas offered; empty without tools."""
    tools: str | None = None
    """JSON of the tool schemas, on the first turn that offers them."""
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    """Usage as the server reported it."""
    latency_ms: int | None = None
    streamed: bool = False
    server: str = ""
    """The model server that was asked: scheme, host and port, without credentials, path or query; empty if unknown."""
    trainable: bool
    untrainable_reason: str | None = None
    """`no_logprobs`, `no_token_ids`, `length_mismatch`, `masked_text`, `truncated_stream`, …"""

    def __post_init__(self) -> None:
        """Refuse a turn whose own fields contradict `trainable`."""
        if self.trainable and self.untrainable_reason is not None:
            raise InvalidRecordError(f"turn {self.event_id} is trainable and has reason {self.untrainable_reason!r}")
        if not self.trainable and not self.untrainable_reason:
            raise InvalidRecordError(f"turn {self.event_id} is not trainable and gives no reason")
        if self.trainable and not (self.prompt_token_ids and self.completion_token_ids and self.logprobs):
            raise InvalidRecordError(f"turn {self.event_id} is trainable without token ids or log-probs")
        if self.trainable and token_count(self.completion_token_ids) != token_count(self.logprobs):
            raise InvalidRecordError(
                f"turn {self.event_id} has {token_count(self.completion_token_ids)} sampled tokens "
                f"and {token_count(self.logprobs)} log-probs"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCalled(Event):
    """The agent ran a tool."""

    name: str
    tool_call_id: str | None = None
    arguments: str = ""
    """JSON as the model wrote it."""
    result: str | None = None
    error: str | None = None
    latency_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardReported(Event):
    """Feedback on an episode or one of its turns; before, during or long after it, by id or by alias."""

    name: str = "reward"
    value: float | None = None
    """None only if `retracted`, or with a `signal`."""
    alias: str | None = None
    """Set instead of the episode, if the caller knows only an alias."""
    turn_event_id: str | None = None
    source: str = "agent"
    supersedes: str | None = None
    """Event id of the report that this one replaces."""
    retracted: bool = False
    comment: str | None = None
    """With a `signal`, the user's words: the next message, or the answer as the user edited it."""
    signal: Signal = ""
    """What the user did next. Such a report is about the named turn, or the last one, and reward functions read it.
    With a value too, it is an ordinary report of that value."""

    def __post_init__(self) -> None:
        """Refuse a reward without a finite value or without one target."""
        if self.value is None and not self.retracted and not self.signal:
            raise InvalidRecordError(f"reward {self.name!r} ({self.event_id}) has no value and is not retracted")
        if self.value is not None and not math.isfinite(self.value):
            raise InvalidRecordError(f"reward {self.name!r} ({self.event_id}) is {self.value}; it must be finite")
        if not self.episode_id and self.alias is None:
            raise InvalidRecordError(f"reward {self.name!r} ({self.event_id}) names neither episode nor alias")


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeEnded(Event):
    """The agent's run is over; rewards may still follow."""

    stop_reason: StopReason = "completed"
    error: str | None = None
    writer_ids: tuple[str, ...] = ()
    """Every writer of this episode that the ending process knows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WriterClosed(Event):
    """A writer's last event of an episode; its own sequence equals `count`."""

    count: int
    """Events this writer sent before this one: sequences 0 … count − 1."""
    partial: tuple[str, ...] = ()
    """What its process missed meanwhile, perhaps of this episode: `calls_outside_episode`, `hook_errors`."""
    paused: bool = False
    """True if the episode waits, such as for a person's answer: another writer goes on with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Excluded(Event):
    """This episode must no longer be used for training."""

    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class AliasDeclared(Event):
    """From now on `alias` names this episode."""

    alias: str
    conversation: bool = False
    """True if the alias is a conversation, of which this episode is the next one: the episode before gets a reply."""
    message: str | None = None
    """What the user said to this episode first; only with `conversation`."""
