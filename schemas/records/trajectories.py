"""A finished episode assembled in order, and its score.

A trajectory's tokens are in *histories*: token sequences in which every turn's prompt extends the
tokens before it exactly.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from rollbus.schemas.errors import InvalidRecordError
from rollbus.schemas.ids import parse_json, without_version
from rollbus.schemas.records.events import Message, Signal, StopReason
from rollbus.schemas.records.tokens import token_count

ClosedBy = Literal["ended", "inactivity", "pause"]
ScoreOutcome = Literal["scored", "failed", "missing"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Location:
    """The place of a record's bytes. Never part of an id or a hash."""

    topic: str
    partition: int
    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Tokens start … end − 1 of a history, sampled in one turn by one policy version."""

    start: int
    end: int
    turn: int
    """Index into the trajectory's turns."""
    policy_version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """One token sequence to train on."""

    token_ids: bytes
    """int32 little-endian, prompts and completions in order."""
    logprobs: bytes
    """float32 little-endian, of the sampled tokens only, span after span."""
    spans: tuple[Span, ...]
    """The sampled tokens; all others have sample mask 0."""

    def __post_init__(self) -> None:
        """Refuse spans that overlap, leave the sequence or disagree with the log-probs."""
        end, sampled = 0, 0
        for span in self.spans:
            if span.start < end or span.end <= span.start:
                raise InvalidRecordError(f"span {span.start}–{span.end} overlaps or is empty")
            end, sampled = span.end, sampled + span.end - span.start
        if end > token_count(self.token_ids) or sampled != token_count(self.logprobs):
            raise InvalidRecordError(
                f"history of {token_count(self.token_ids)} tokens and {token_count(self.logprobs)} log-probs "
                f"has spans to {end} with {sampled} sampled tokens"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """A turn without its tokens, which are in the histories."""

    event_id: str
    function: str = ""
    model: str = ""
    policy_version: int | None = None
    response_id: str | None = None
    added_messages: tuple[Message, ...] = ()
    completion: Message
    finish_reason: str | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    repetition_penalty: float | None = None
    """As in the request; None if the request did not set it."""
    logprob_mode: str = "unknown"
    occurred_at_ms: int
    latency_ms: int | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    trainable: bool
    untrainable_reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolResult:
    """A tool call of the episode."""

    event_id: str
    name: str
    tool_call_id: str | None = None
    arguments: str = ""
    result: str | None = None
    error: str | None = None
    occurred_at_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Reward:
    """A valid reward report (superseded and retracted ones are left out)."""

    event_id: str
    name: str
    value: float
    """0 with a `signal`, which says more than a number."""
    turn_event_id: str | None = None
    source: str = "agent"
    principal: str = ""
    """Who reported it, by a valid signature; empty if nobody signed."""
    signal: Signal = ""
    """What the user did after the turn; empty where the report gives a value."""
    comment: str | None = None
    """Of a signal: the user's words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnReward:
    """What one component says of one turn."""

    turn_event_id: str
    component: str
    value: float | None = None
    """None is unclear: no reward, and counted."""
    confidence: float = 1.0
    """Between 0 and 1; how much it counts among several values of one component."""
    weight: float = 1.0
    """Of the component in the score; less where the score was clipped, and the turn's reward with it."""
    share: float = 1.0
    """What part of the value is in the component's: 1 in a sum, less in a mean."""
    signal: str = ""
    """The rule that spoke, or `judge`; empty for a reported value."""
    event_id: str = ""
    """The report that was read; empty where the trajectory itself has the words."""
    is_hint: bool = False
    """True if what was said after the turn may help to answer better: a correction, not thanks."""
    hint: str = ""
    """The component's own words on how to answer better, as a judge writes them; empty where the user's words are the
    hint, or nothing is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trajectory:
    """A finished episode: turns, tools and rewards in order, and its tokens as sampled."""

    trajectory_id: str
    episode_id: str
    root_episode_id: str
    parent_episode_id: str | None = None
    task: str
    example_id: str | None = None
    group_id: str | None = None
    group_size: int | None = None
    group_hint: str
    """The Kafka key."""
    agent: str = ""
    principal: str = ""
    """Who recorded it, by valid signatures, several separated by commas; empty if a part of it is nobody's."""
    producer: str = ""
    environment: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    resampled: bool = False
    started_at_ms: int
    ended_at_ms: int
    """Event time of the first and the last event."""
    assembled_at_ms: int
    """Stream time."""
    first_seen_ms: int = 0
    """Stream time when its first event came."""
    closed_by: ClosedBy
    stop_reason: StopReason | None = None
    turns: tuple[Turn, ...] = ()
    tools: tuple[ToolResult, ...] = ()
    rewards: tuple[Reward, ...] = ()
    histories: tuple[History, ...] = ()
    opening_hash: str = ""
    """Fingerprint of the messages before the first completion."""
    prompt_hash: str = ""
    """Hash of the first prompt's token ids; members of a group share it."""
    tools_hash: str = ""
    trainable: bool
    untrainable_reason: str | None = None
    is_rewarded_after: bool = False
    """True if a valid reward came after its last turn and tool call."""
    partial: tuple[str, ...] = ()
    """Why it may lack turns: `missing_events`, or what its writers say; empty if nothing is known to be missing."""
    config_hash: str = ""


def call_ids(turn: Turn) -> Iterator[str]:
    """Yield the texts that a turn's calls of tools have as their own fields, such as `id`; none if they are not JSON.

    Their arguments hold anything, and one id may begin another: a search in the whole text finds too much.
    """
    try:
        calls = parse_json(turn.completion.tool_calls or "[]")
    except ValueError:
        return
    for call in calls if isinstance(calls, list) else ():
        if isinstance(call, dict):
            yield from (field for field in call.values() if isinstance(field, str))


def trained_model(trajectory: Trajectory) -> str:
    """Return the model, without its version, of the first trainable turn, else of the first; empty without turns."""
    turn = next((turn for turn in trajectory.turns if turn.trainable), next(iter(trajectory.turns), None))
    return "" if turn is None else without_version(turn.model)


@dataclass(frozen=True, slots=True, kw_only=True)
class LastTurn:
    """What a reward function must know of an episode's last turn to understand what the user said next."""

    event_id: str
    question: str = ""
    """The user's last message before it, and its text; the beginning of a long one."""
    answer: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardRevised:
    """The rewards of a trajectory changed after it was written; these are the present ones."""

    trajectory_id: str
    episode_id: str
    group_hint: str
    """The Kafka key."""
    revision: int
    """Counts from 1."""
    rewards: tuple[Reward, ...] = ()
    new: tuple[str, ...] = ()
    """Event ids of those that were not in force before, or had another value."""
    withdrawn: tuple[Reward, ...] = ()
    """Those that were in force before and are not any more."""
    excluded: bool = False
    """True if the episode was excluded from training."""
    revised_at_ms: int
    """Stream time."""
    last_turn: LastTurn | None = None
    """Of an episode of a conversation, if a reward says what its user did next."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """The score of a trajectory, with the fields that grouping needs and the location of its payload."""

    trajectory_id: str
    episode_id: str
    location: Location
    revision: int = 0
    """0 for the first score; a revised reward counts up."""
    task: str
    example_id: str | None = None
    group_id: str | None = None
    group_size: int | None = None
    group_hint: str
    """The Kafka key."""
    agent: str = ""
    principal: str = ""
    """Who recorded it, as its trajectory has it."""
    labels: Mapping[str, str] = field(default_factory=dict)
    resampled: bool = False
    model: str = ""
    """Without the version: the name before `@`."""
    prompt_hash: str = ""
    tools_hash: str = ""
    opening_hash: str = ""
    opening_sketch: str = ""
    """Hexadecimal digits of a few bytes; openings with words in common share some of them."""
    tokens: int = 0
    sampled_tokens: int = 0
    longest_history_tokens: int = 0
    min_policy_version: int | None = None
    """Oldest and newest version of any trained turn; None without trainable turns."""
    max_policy_version: int | None = None
    stop_reason: str | None = None
    trainable: bool
    untrainable_reason: str | None = None
    outcome: ScoreOutcome
    value: float | None = None
    """The weighted, clipped sum of the components; None is not 0."""
    components: Mapping[str, float] = field(default_factory=dict)
    reward_version: str = ""
    error: str | None = None
    excluded: bool = False
    config_hash: str = ""
    first_seen_ms: int = 0
    """Stream time when its first event came."""
    served_versions: tuple[int, ...] = ()
    """Every policy version that answered one of its turns, also of turns that cannot be trained."""
    latency_ms: int | None = None
    """Of its slowest turn."""
    tool_errors: int = 0
    closed_by: ClosedBy = "ended"
    """`inactivity` if no end came: its agent may have been killed in the middle. `pause` if nothing resumed it."""
    is_rewarded_after: bool = False
    """True if a valid reward came after its last turn and tool call, also by a revision."""
    turn_ids: tuple[str, ...] = ()
    """Event ids of its turns, in order; empty if it has one turn or none."""
    turn_rewards: tuple[TurnReward, ...] = ()
    """What components say of its turns, also where that is unclear."""
    revised_at: Location | None = None
    """Of the `RewardRevised` that led to this revision; None for the first score."""
    hints_at: Location | None = None
    """Of this record, where grouping keeps it without the words of its hints; always None in the topic."""
