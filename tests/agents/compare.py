"""Hold what was recorded against what the server answered: nothing lost, doubled or mixed, every verdict right."""

import json
from collections import Counter
from collections.abc import Sequence
from typing import Any

from rollbus.schemas.codec import encode
from rollbus.schemas.records.config import AssemblyConfig
from rollbus.schemas.records.drops import Drop
from rollbus.schemas.records.events import EpisodeEnded, EpisodeStarted, Event, TurnRecorded
from rollbus.schemas.records.tokens import decode_logprobs, decode_token_ids
from rollbus.schemas.records.trajectories import Location, Trajectory
from rollbus.streams.stages.assembly.stage import AssemblyStage
from rollbus.streams.state.stage import Incoming
from tests.agents.model_server import ModelAnswer, ModelServer

REASONS = {"failed": "call_failed", "stalled": "call_timed_out", "cut": "call_failed"}
"""Of a turn without an answer."""


def compare_turns(
    server: ModelServer, events: Sequence[Event], *, retried: bool = False, cancelled: bool = False
) -> list[TurnRecorded]:
    """Assert that the events say what the server knows; return the turns.

    With `retried` the client repeats calls by itself: an attempt that failed and was repeated leaves no turn. With
    `cancelled` the agent cancels calls of its own, whatever the server made of them: a stream that the server ended may
    have been cut off in the agent.
    """
    turns = [event for event in events if isinstance(event, TurnRecorded)]
    by_id = {turn.response_id: turn for turn in turns if turn.response_id}
    answered = [turn.response_id for turn in turns if turn.response_id]
    assert len(answered) == len(by_id), f"doubled: {Counter(answered).most_common(3)}"
    seen = {
        answer.response_id: answer
        for answer in server.answers
        if answer.fate == "whole" or (answer.streamed and answer.fate == "cut")
    }
    if cancelled:
        seen = {response_id: answer_given for response_id, answer_given in seen.items() if response_id in by_id}
    assert by_id.keys() == seen.keys(), f"lost {seen.keys() - by_id.keys()}, made up {by_id.keys() - seen.keys()}"
    for response_id, answer_given in seen.items():
        turn = by_id[response_id]
        cut_by_agent = cancelled and answer_given.streamed and turn.untrainable_reason == "truncated_stream"
        _compare_turn(answer_given, turn, cut=answer_given.fate == "cut" or cut_by_agent)
    failed = Counter[tuple[str, str | None]](
        (answer.episode, REASONS.get(answer.fate, "call_cancelled"))
        for answer in server.answers
        if answer.response_id not in seen
    )
    failed_turns = Counter((turn.root_episode_id, turn.untrainable_reason) for turn in turns if not turn.response_id)
    if cancelled:  # a call may be cancelled before it reaches the server
        assert _by_episode(failed) <= _by_episode(failed_turns), (failed_turns, failed)
    else:
        assert (failed_turns <= failed) if retried else (failed_turns == failed), (failed_turns, failed)
    _compare_episodes(events, turns)
    return turns


def _compare_turn(answer_given: ModelAnswer, turn: TurnRecorded, *, cut: bool) -> None:
    assert turn.root_episode_id == answer_given.episode, "mixed"
    assert turn.streamed == answer_given.streamed
    ids = list(decode_token_ids(turn.completion_token_ids or b""))
    logprobs = list(decode_logprobs(turn.logprobs or b""))
    if cut:
        assert turn.untrainable_reason == "truncated_stream"
        assert ids == answer_given.ids[: len(ids)]
        assert logprobs == answer_given.logprobs[: len(logprobs)]
        return
    assert turn.untrainable_reason == verdict_on(answer_given)
    assert list(decode_token_ids(turn.prompt_token_ids or b"")) == answer_given.prompt_ids
    assert (ids, logprobs) == (answer_given.ids, answer_given.logprobs)
    assert turn.policy_version == 3
    assert turn.completion.content == answer_given.message.get("content")
    assert _calls(json.loads(turn.completion.tool_calls or "[]")) == _calls(
        answer_given.message.get("tool_calls") or []
    )
    if turn.added_messages:
        assert turn.added_messages[-1].role == answer_given.last["role"]


def verdict_on(answer_given: ModelAnswer) -> str | None:
    """Return why the turn of a whole answer cannot be trained; None if it can."""
    return "sampling_constrained" if answer_given.is_constrained else None


def _by_episode(reasons: Counter[tuple[str, str | None]]) -> Counter[str]:
    return Counter(episode for episode, _ in reasons.elements())


def _calls(calls: list[dict[str, Any]]) -> list[tuple[str, str, str]]:
    return [(call["id"], call["function"]["name"], call["function"]["arguments"]) for call in calls]


def _compare_episodes(events: Sequence[Event], turns: Sequence[TurnRecorded]) -> None:
    """Every episode that began has ended once, and assembly makes a whole trajectory of it."""
    starts = Counter(event.episode_id for event in events if isinstance(event, EpisodeStarted))
    ended = Counter(event.episode_id for event in events if isinstance(event, EpisodeEnded))
    assert set(starts.values()) <= {1}
    assert starts == ended
    stage = AssemblyStage(AssemblyConfig())
    state, place = stage.new_state(), Location(topic="t", partition=0, offset=0)
    assembled_records = [
        out.record
        for event in events
        for out in stage.step(state, Incoming(event, event.root_episode_id, place, encode(event)))
    ]
    assert [record for record in assembled_records if isinstance(record, Drop)] == []
    lengths = {record.episode_id: len(record.turns) for record in assembled_records if isinstance(record, Trajectory)}
    assert lengths == {episode: sum(turn.episode_id == episode for turn in turns) for episode in starts}
