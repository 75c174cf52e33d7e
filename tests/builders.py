"""Small builders of records: each names only what a test is about, and everything else has a plain value."""

from collections.abc import Sequence
from typing import Any

from rollbus.schemas.ids import content_hash, event_id, reward_event_id, trajectory_id
from rollbus.schemas.records.control import ConfigApplied, RunCommand, Tick
from rollbus.schemas.records.drops import DeadLetter
from rollbus.schemas.records.events import (
    AliasDeclared,
    EpisodeEnded,
    EpisodeStarted,
    Excluded,
    Message,
    RewardReported,
    ToolCalled,
    TurnRecorded,
    WriterClosed,
)
from rollbus.schemas.records.groups import Group, GroupMember, StepOutcome
from rollbus.schemas.records.steps import PolicyVersion, StepCompleted
from rollbus.schemas.records.tokens import encode_logprobs, encode_token_ids
from rollbus.schemas.records.trajectories import History, Location, Reward, Score, Span, Trajectory, Turn

SECOND_MS = 1_000
MINUTE_MS = 60_000
START_MS = 1_700_000_000_000
"""Stream time and event time at which every test begins."""


def make_tick(number: int, *, interval_ms: int = SECOND_MS, stream_time_ms: int | None = None) -> Tick:
    """The `number`-th tick, at START_MS + number × interval unless told otherwise."""
    now = START_MS + number * interval_ms if stream_time_ms is None else stream_time_ms
    return Tick(number=number, stream_time_ms=now, wall_clock_ms=now, interval_ms=interval_ms)


def envelope(
    episode: str = "e1", sequence: int = 0, *, writer: str = "w1", root: str | None = None, at_ms: int | None = None
) -> dict[str, Any]:
    """The fields that every event carries."""
    return {
        "event_id": event_id(episode, writer, sequence),
        "episode_id": episode,
        "root_episode_id": root or episode,
        "writer_id": writer,
        "sequence": sequence,
        "occurred_at_ms": START_MS + max(sequence, 0) * 10 if at_ms is None else at_ms,
        "episode_started_at_ms": START_MS,
    }


def make_started(
    episode: str = "e1", sequence: int = 0, *, writer: str = "w1", root: str | None = None, **fields: Any
) -> EpisodeStarted:
    """The start of an episode of task `play`, example `x1`."""
    defaults: dict[str, Any] = {"task": "play", "agent": "player", "example_id": "x1"}
    return EpisodeStarted(**envelope(episode, sequence, writer=writer, root=root), **(defaults | fields))


def make_turn(
    episode: str = "e1",
    sequence: int = 1,
    *,
    writer: str = "w1",
    root: str | None = None,
    at_ms: int | None = None,
    prompt: Sequence[int] | None = (1, 2, 3),
    completion: Sequence[int] = (4, 5),
    logprobs: Sequence[float] | None = None,
    version: int | None = 0,
    text: str = "5",
    untrainable: str | None = None,
    **fields: Any,
) -> TurnRecorded:
    """A trainable turn of `agent@version`; `untrainable` gives the reason why it is none."""
    if logprobs is None:
        logprobs = [-0.5] * len(completion)
    defaults: dict[str, Any] = {
        "model": "agent" if version is None else f"agent@{version}",
        "policy_version": version,
        "added_messages": (Message(role="user", content="your move"),),
        "completion": Message(role="assistant", content=text),
        "finish_reason": "stop",
        "temperature": 1.0,
        "trainable": untrainable is None,
        "untrainable_reason": untrainable,
    }
    if untrainable is None and prompt is not None:
        defaults |= {
            "prompt_token_ids": encode_token_ids(prompt),
            "completion_token_ids": encode_token_ids(completion),
            "logprobs": encode_logprobs(logprobs),
        }
    return TurnRecorded(**envelope(episode, sequence, writer=writer, root=root, at_ms=at_ms), **(defaults | fields))


def make_tool(
    episode: str = "e1", sequence: int = 2, *, writer: str = "w1", root: str | None = None, **fields: Any
) -> ToolCalled:
    """A tool call with its result."""
    defaults: dict[str, Any] = {"name": "search", "arguments": "{}", "result": "found"}
    return ToolCalled(**envelope(episode, sequence, writer=writer, root=root), **(defaults | fields))


def make_reward(
    episode: str = "e1",
    value: float | None = 1.0,
    *,
    sequence: int = -1,
    key: str = "k",
    name: str = "reward",
    writer: str = "w1",
    root: str | None = None,
    at_ms: int | None = None,
    **fields: Any,
) -> RewardReported:
    """A reward under the caller's key, or as the `sequence`-th event of its writer."""
    base = envelope(episode, sequence, writer=writer, root=root, at_ms=at_ms)
    if sequence < 0:
        base["event_id"] = reward_event_id(episode, name, key)
    return RewardReported(**base, name=name, value=value, **fields)


def make_alias_reward(alias: str, value: float | None = 1.0, *, key: str = "k", **fields: Any) -> RewardReported:
    """A reward of which only the alias is known."""
    base = envelope("", -1, writer="feedback", root="-") | {"root_episode_id": "", "episode_started_at_ms": 0}
    base["event_id"] = reward_event_id(alias, fields.get("name", "reward"), key)
    return RewardReported(**base, value=value, alias=alias, **fields)


def make_ended(
    episode: str = "e1", sequence: int = 2, *, writer: str = "w1", root: str | None = None, **fields: Any
) -> EpisodeEnded:
    """The end of an episode of one writer."""
    defaults: dict[str, Any] = {"writer_ids": (writer,)}
    return EpisodeEnded(**envelope(episode, sequence, writer=writer, root=root), **(defaults | fields))


def make_closed(episode: str = "e1", count: int = 3, *, writer: str = "w1", root: str | None = None) -> WriterClosed:
    """A writer's last word: it sent `count` events before this one."""
    return WriterClosed(**envelope(episode, count, writer=writer, root=root), count=count)


def make_excluded(episode: str = "e1", *, root: str | None = None) -> Excluded:
    """The wish that an episode be forgotten."""
    return Excluded(**envelope(episode, 0, writer="operator", root=root), reason="asked")


def make_alias(alias: str, episode: str = "e1", sequence: int = 0, *, root: str | None = None) -> AliasDeclared:
    """A declaration that `alias` stands for an episode."""
    return AliasDeclared(**envelope(episode, sequence, writer="aliaser", root=root), alias=alias)


def make_episode(
    episode: str = "e1",
    *,
    reward: float | None = 1.0,
    turns: int = 1,
    writer: str = "w1",
    root: str | None = None,
    version: int | None = 0,
    start: dict[str, Any] | None = None,
) -> list[Any]:
    """All events of a whole episode, in the order sent: each turn's prompt extends the one before exactly."""
    events: list[Any] = [make_started(episode, writer=writer, root=root, **(start or {}))]
    tokens = [1, 2, 3]
    for turn in range(turns):
        completion = [100 + turn, 200 + turn]
        events.append(
            make_turn(
                episode,
                len(events),
                writer=writer,
                root=root,
                prompt=tuple(tokens),
                completion=completion,
                version=version,
            )
        )
        tokens += [*completion, 7, 8]
    if reward is not None:
        events.append(make_reward(episode, reward, sequence=len(events), writer=writer, root=root))
    events.append(make_ended(episode, len(events), writer=writer, root=root))
    events.append(make_closed(episode, len(events), writer=writer, root=root))
    return events


def make_trajectory(episode: str = "e1", *, reward: float | None = 1.0, text: str = "5", **fields: Any) -> Trajectory:
    """An assembled trajectory of one turn of version 0, as assembly makes it of `make_episode`."""
    turn = Turn(
        event_id=event_id(episode, "w1", 1),
        model="agent@0",
        policy_version=0,
        added_messages=(Message(role="user", content="your move"),),
        completion=Message(role="assistant", content=text),
        finish_reason="stop",
        temperature=1.0,
        occurred_at_ms=START_MS + 10,
        trainable=True,
    )
    history = History(
        token_ids=encode_token_ids([1, 2, 3, 4, 5]),
        logprobs=encode_logprobs([-0.5, -0.5]),
        spans=(Span(start=3, end=5, turn=0, policy_version=0),),
    )
    rewards = () if reward is None else (Reward(event_id=f"r-{episode}", name="reward", value=reward),)
    defaults: dict[str, Any] = {
        "trajectory_id": trajectory_id(episode),
        "episode_id": episode,
        "root_episode_id": episode,
        "task": "play",
        "agent": "player",
        "example_id": "x1",
        "group_hint": "example:play:x1",
        "started_at_ms": START_MS,
        "ended_at_ms": START_MS + 20,
        "assembled_at_ms": START_MS,
        "closed_by": "ended",
        "stop_reason": "completed",
        "turns": (turn,),
        "rewards": rewards,
        "histories": (history,),
        "opening_hash": "opening",
        "prompt_hash": content_hash([1, 2, 3]),
        "trainable": True,
    }
    return Trajectory(**(defaults | fields))


def make_score(trajectory: str = "t1", value: float | None = 1.0, *, version: int | None = 0, **fields: Any) -> Score:
    """The score of a trajectory of `agent` on example `x1`."""
    defaults: dict[str, Any] = {
        "trajectory_id": trajectory,
        "episode_id": f"e-{trajectory}",
        "location": Location(topic="rollbus.trajectories", partition=0, offset=0),
        "task": "play",
        "agent": "player",
        "example_id": "x1",
        "group_hint": "example:play:x1",
        "model": "agent",
        "prompt_hash": "prompt",
        "opening_hash": "opening",
        "tokens": 5,
        "sampled_tokens": 2,
        "longest_history_tokens": 5,
        "min_policy_version": version,
        "max_policy_version": version,
        "stop_reason": "completed",
        "trainable": True,
        "outcome": "missing" if value is None else "scored",
        "value": value,
        "components": {} if value is None else {"reward": value},
        "reward_version": "r1",
    }
    return Score(**(defaults | fields))


def make_member(trajectory: str = "t1", reward: float = 1.0, *, version: int = 0, **fields: Any) -> GroupMember:
    """One member of a group, with advantage 0."""
    defaults: dict[str, Any] = {
        "trajectory_id": trajectory,
        "episode_id": f"e-{trajectory}",
        "location": Location(topic="rollbus.trajectories", partition=0, offset=0),
        "reward": reward,
        "advantage": 0.0,
        "components": {"reward": reward},
        "min_policy_version": version,
        "max_policy_version": version,
        "tokens": 5,
        "sampled_tokens": 2,
    }
    return GroupMember(**(defaults | fields))


def make_group(group: str = "g1", rewards: Sequence[float] = (0.0, 1.0), *, version: int = 0, **fields: Any) -> Group:
    """A closed group of run `main` with such rewards; its members are `<group>-0`, `<group>-1`, …"""
    mean = sum(rewards) / len(rewards)
    members = tuple(
        make_member(f"{group}-{index}", reward, version=version, advantage=reward - mean)
        for index, reward in enumerate(rewards)
    )
    defaults: dict[str, Any] = {
        "group_id": group,
        "run_id": "main",
        "group_key": f"example:play:{group}",
        "model": "agent",
        "task": "play",
        "example_id": group,
        "strategy": "by_example",
        "advantage_kind": "mean",
        "members": members,
        "reward_mean": mean,
        "reward_std": (sum((reward - mean) ** 2 for reward in rewards) / len(rewards)) ** 0.5,
        "reward_min": min(rewards),
        "reward_max": max(rewards),
        "has_signal": max(rewards) - min(rewards) > 1e-9,
        "closed_by": "full",
        "closed_at_ms": START_MS,
    }
    return Group(**(defaults | fields))


def make_outcome(batch: Any, *, step: int = 1, base: int = 0, version: int | None = None, **fields: Any) -> StepOutcome:
    """The trainer's answer to a TrainingBatch: completed, with version `base` + 1."""
    defaults: dict[str, Any] = {
        "run_id": batch.run_id,
        "step": step,
        "batch_hash": batch.batch_hash,
        "batch_number": batch.number,
        "state": "completed",
        "base_version": base,
        "policy_version": base + 1 if version is None else version,
    }
    return StepOutcome(**(defaults | fields))


def make_step(number: int = 1, **fields: Any) -> StepCompleted:
    """A completed step that made version `number` from the one before and names no member."""
    defaults: dict[str, Any] = {
        "run_id": "main",
        "model": "agent",
        "batch_hash": f"b{number}",
        "batch_number": number,
        "base_version": number - 1,
        "policy_version": number,
        "trained": (),
        "started_at_ms": START_MS,
        "completed_at_ms": START_MS,
    }
    return StepCompleted(step=number, **(defaults | fields))


def make_letter(**fields: Any) -> DeadLetter:
    """A record of `rollbus.scores` that grouping could not read."""
    defaults: dict[str, Any] = {"topic": "rollbus.scores", "partition": 0, "offset": 7, "timestamp_ms": START_MS}
    defaults |= {"stage": "grouping", "error_class": "UndecodableError", "message": "not a record"}
    return DeadLetter(**(defaults | fields))


def make_version(version: int, parent: int | None = None, **fields: Any) -> PolicyVersion:
    """A serving version of `agent`."""
    defaults: dict[str, Any] = {"model": "agent", "run_id": "main", "state": "serving", "changed_at_ms": START_MS}
    return PolicyVersion(version=version, parent=parent, **(defaults | fields))


def make_command(command: Any, *, key: str = "c1", run_id: str = "main") -> RunCommand:
    """An operator's command."""
    return RunCommand(run_id=run_id, command=command, command_id=key)


def make_config(stage: str, config: Any, *, run_id: str | None = None) -> ConfigApplied:
    """The record by which a stage takes up a configuration."""
    return ConfigApplied(stage=stage, run_id=run_id, config_hash=config.config_hash(), content=config.model_dump_json())
