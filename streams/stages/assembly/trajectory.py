"""The events of one closed episode → its trajectory.

Events of a writer keep their order; writers are merged by event time. Nothing here knows how the events arrived.

An answer that was seen from two sides becomes one turn. A framework's hook that sees a call without its tokens records
a turn that is `not_captured`. Where a proxy or another client recorded the same answer with tokens, the hook's turn is
only its echo: it goes, and leaves the name of the function that asked.
"""

import heapq
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from rollbus.schemas.ids import group_hint, hash_bytes, messages_hash, trajectory_id, without_version
from rollbus.schemas.record_makers import copier
from rollbus.schemas.records.config import AssemblyConfig
from rollbus.schemas.records.drops import DropReason
from rollbus.schemas.records.events import (
    EpisodeEnded,
    EpisodeStarted,
    Event,
    Message,
    RewardReported,
    ToolCalled,
    TurnRecorded,
    WriterClosed,
)
from rollbus.schemas.records.trajectories import Reward, ToolResult, Trajectory, Turn
from rollbus.streams.stages.assembly.histories import merge, token_problem

NOT_TARGETED = DropReason.NOT_TARGETED.value
NOT_CAPTURED = "not_captured"
"""As producers write it: the reason of a turn whose call was seen without its tokens."""
CONVERSATION = "conversation"
"""Label of an episode that is part of a conversation: its id."""
MOST_CHARACTERS = 4_000
"""Of a question, and of an answer, that are kept for as long as their episode's next turn may come."""
_MESSAGE_FIELDS = tuple(field.name for field in fields(Message))

# The fields that a turn, a tool result and a trajectory share with their events are copied by name; others are named.
_make_turn = copier(TurnRecorded, Turn, "trainable", "untrainable_reason")
_make_tool_result = copier(ToolCalled, ToolResult)
_make_trajectory = copier(
    EpisodeStarted,
    Trajectory,
    *("trajectory_id", "group_hint", "started_at_ms", "ended_at_ms", "assembled_at_ms", "closed_by", "stop_reason"),
    *("example_id", "group_id", "first_seen_ms"),
    *("turns", "tools", "rewards", "histories", "opening_hash", "prompt_hash", "tools_hash"),
    *("trainable", "untrainable_reason", "is_rewarded_after", "partial", "config_hash", "principal"),
)


@dataclass(frozen=True, slots=True)
class Closing:
    """How an episode came to be closed."""

    now_ms: int
    """Stream time."""
    holes: Mapping[str, int]
    """Missing events by writer; empty where all are in."""
    first_seen_ms: int = 0
    """Stream time of the first event that came."""
    principal: str = ""
    """Who recorded its start."""


def build(
    events: Iterable[Event],
    rewards: tuple[Reward, ...],
    config: AssemblyConfig,
    config_hash: str,
    closing: Closing,
) -> Trajectory | None:
    """Return the trajectory; None where the episode's start is missing, and with it its task."""
    ordered = in_order(events)
    events_by_type: dict[type, list[Any]] = defaultdict(list)
    for event in ordered:
        events_by_type[type(event)].append(event)
    if not events_by_type[EpisodeStarted]:
        return None
    start: EpisodeStarted = events_by_type[EpisodeStarted][0]
    end: EpisodeEnded | None = next(iter(events_by_type[EpisodeEnded]), None)
    turns = without_echoes(events_by_type[TurnRecorded])
    targeted = [turn for turn in turns if _is_targeted(turn, config)]
    problems = [token_problem(turn) if _is_targeted(turn, config) else NOT_TARGETED for turn in turns]
    reason = _find_problem(turns, targeted, problems, config, closing)
    prompt = next((turn.prompt_token_ids for turn in targeted if turn.prompt_token_ids), None)
    opening = messages_hash(map(_to_plain, turns[0].added_messages)) if turns else ""
    example_id, group_id = start.example_id or None, start.group_id or None  # an empty id names nothing
    times = [event.occurred_at_ms for event in ordered if type(event) is not RewardReported]
    return _make_trajectory(
        start,
        trajectory_id=trajectory_id(start.episode_id),
        example_id=example_id,
        group_id=group_id,
        group_hint=group_hint(group_id=group_id, task=start.task, example_id=example_id, opening_hash=opening),
        started_at_ms=min(times),
        ended_at_ms=max(times),
        assembled_at_ms=closing.now_ms,
        first_seen_ms=closing.first_seen_ms,
        closed_by="ended" if end else "pause" if _is_paused(ordered) else "inactivity",
        stop_reason=end.stop_reason if end else None,
        turns=tuple(
            _make_turn(turn, trainable=problem is None, untrainable_reason=problem)
            for turn, problem in zip(turns, problems, strict=True)
        ),
        tools=tuple(map(_make_tool_result, events_by_type[ToolCalled])) if config.include_tool_calls else (),
        rewards=rewards,
        histories=merge((index, turn) for index, turn in enumerate(turns) if problems[index] is None),
        opening_hash=opening,
        prompt_hash=hash_bytes(prompt) if prompt else "",
        tools_hash=targeted[0].tools_hash if targeted else "",
        trainable=reason is None,
        untrainable_reason=reason,
        is_rewarded_after=_is_rewarded_after(ordered, rewards),
        partial=_list_losses(events_by_type[WriterClosed], closing),
        config_hash=config_hash,
        principal=closing.principal,
    )


def last_turn_of(trajectory: Trajectory) -> tuple[str, str, str] | None:
    """Return id, question and answer of the last turn of an episode of a conversation; None of any other."""
    if CONVERSATION not in trajectory.labels or not trajectory.turns:
        return None
    turn = trajectory.turns[-1]
    questions = (
        message.content or ""
        for earlier in reversed(trajectory.turns)
        for message in reversed(earlier.added_messages)
        if message.role == "user"
    )
    answer = turn.completion.content or ""
    return turn.event_id, next(questions, "")[:MOST_CHARACTERS], answer[:MOST_CHARACTERS]


def _is_paused(ordered: Iterable[Event]) -> bool:
    """Say whether the last that an agent did was to pause."""
    last = [event for event in ordered if not isinstance(event, RewardReported)][-1]
    return isinstance(last, WriterClosed) and last.paused


def _is_rewarded_after(ordered: Sequence[Event], rewards: Iterable[Reward]) -> bool:
    """Say whether a reward that counts comes after everything that the agent did."""
    counted_event_ids = {reward.event_id for reward in rewards}
    for event in reversed(ordered):
        if isinstance(event, TurnRecorded | ToolCalled):
            return False
        if isinstance(event, RewardReported) and event.event_id in counted_event_ids:
            return True
    return False


def _list_losses(writers_closed: Iterable[WriterClosed], closing: Closing) -> tuple[str, ...]:
    """Return why events of the episode are missing: what its writers reported, and gaps in what came."""
    reasons = {name for writer in writers_closed for name in writer.partial}
    if closing.holes:
        reasons.add(DropReason.MISSING_EVENTS.value)
    return tuple(sorted(reasons))


def in_order(events: Iterable[Event]) -> list[Event]:
    """Return the events, each writer's in its sequence, merged by event time; those without sequence by time alone."""
    by_writer: dict[tuple[str, str], list[Event]] = {}
    for event in events:
        alone = "" if event.sequence >= 0 else event.event_id
        by_writer.setdefault((event.writer_id, alone), []).append(event)
    for writer_events in by_writer.values():
        writer_events.sort(key=lambda event: event.sequence)
    if len(by_writer) == 1:
        return next(iter(by_writer.values()))
    heads = [(writer_events[0].occurred_at_ms, writer, 0) for writer, writer_events in by_writer.items()]
    heapq.heapify(heads)
    ordered = []
    while heads:
        _, writer, index = heapq.heappop(heads)
        writer_events = by_writer[writer]
        ordered.append(writer_events[index])
        if index + 1 < len(writer_events):
            heapq.heappush(heads, (writer_events[index + 1].occurred_at_ms, writer, index + 1))
    return ordered


def _find_problem(
    turns: Sequence[TurnRecorded],
    targeted: Sequence[TurnRecorded],
    problems: Sequence[str | None],
    config: AssemblyConfig,
    closing: Closing,
) -> str | None:
    """Return why nothing of an episode can be trained; None if a turn can. `problems` are those of each turn."""
    if closing.holes:
        return DropReason.MISSING_EVENTS.value
    if not turns:
        return DropReason.NO_TURNS.value
    if not targeted:
        return NOT_TARGETED
    if len(targeted) < config.min_episode_length:
        return DropReason.TOO_SHORT.value
    if None in problems:
        return None
    return next(problem for problem in problems if problem != NOT_TARGETED)


def _is_targeted(turn: TurnRecorded, config: AssemblyConfig) -> bool:
    if config.target_functions and turn.function not in config.target_functions:
        return False
    return config.target_model is None or without_version(turn.model) == config.target_model


def _to_plain(message: Message) -> dict[str, Any]:
    return {name: value for name in _MESSAGE_FIELDS if (value := getattr(message, name)) is not None}


def without_echoes(turns: Sequence[TurnRecorded]) -> Sequence[TurnRecorded]:
    """Return the turns in their order, each answer once: a turn with tokens takes the place of its echoes."""
    echoes = {_answer_key(turn): turn for turn in turns if turn.untrainable_reason == NOT_CAPTURED and turn.response_id}
    if not echoes:
        return turns
    captured = {_answer_key(turn) for turn in turns if turn.untrainable_reason != NOT_CAPTURED}
    return [
        _with_echo(turn, echoes.get(_answer_key(turn)))
        for turn in turns
        if turn.untrainable_reason != NOT_CAPTURED or _answer_key(turn) not in captured
    ]


def _answer_key(turn: TurnRecorded) -> tuple[str | None, int]:
    return turn.response_id, turn.choice


def _with_echo(turn: TurnRecorded, echo: TurnRecorded | None) -> TurnRecorded:
    return replace(turn, function=echo.function) if echo is not None and not turn.function else turn
