"""Groups that a replay rescores: it asks about the trajectories that it has written itself, once they can be read."""

import asyncio
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from rollbus.schemas.codec import decode, encode
from rollbus.schemas.records.config import AssemblyConfig, GroupingConfig, RewardConfig, RunConfig, ScoringConfig
from rollbus.schemas.records.events import TurnRecorded
from rollbus.schemas.records.groups import ClosedGroup, Group
from rollbus.schemas.records.trajectories import Location, Trajectory
from rollbus.streams.pipeline import AnyStage, namespace_stages, run_stages
from rollbus.streams.replay.decide.output import WrittenPayload
from rollbus.streams.replay.decide.steps import StoppedError
from rollbus.streams.rewards.contract import RewardContext, RewardFunction
from rollbus.streams.rewards.registry import BUILT_IN
from rollbus.streams.stages.scoring.group_scoring import GroupScoringStage
from tests.builders import make_episode, make_group, make_tick, make_trajectory
from tests.flow.in_memory import by_checksum
from tests.streams.replay.lanes import replayed_in_lanes
from tests.streams.replay.memory import ListSource, MemoryOutput, Raw, replayed

PARTITIONS = 2
TEXTS = ("a", "bb", "ccc")


def lengths(group: Sequence[Trajectory], context: RewardContext) -> list[float | None]:
    """What only the payload tells: how long the text of the only turn is."""
    return [float(len(member.turns[0].completion.content or "")) for member in group]


REGISTRY = {**BUILT_IN, "lengths": RewardFunction(lengths, per="group", quick=True)}
RUN = RunConfig(grouping=GroupingConfig(group_size=3, rewards=(RewardConfig(type="lengths", name="length"),)))


@dataclass(slots=True)
class HoldingOutput(MemoryOutput):
    """Lets go of frames when it is told to, and never before, as one that sends many at once may."""

    there: dict[tuple[str, int], int] = field(default_factory=dict)

    async def flush(self) -> None:
        self.there = {place: len(rows) for place, rows in self.frames.items()}


@dataclass(slots=True)
class Topics:
    """Reads trajectories where they stand, if they do."""

    output: HoldingOutput
    asked_locations: list[Location] = field(default_factory=list)

    async def fetch(self, locations: Collection[Location]) -> Mapping[Location, Trajectory]:
        self.asked_locations += locations
        places = {location: (location.topic.removeprefix("replay."), location.partition) for location in locations}
        return {
            asked_location: decode(self.output.frames[place][asked_location.offset][1])
            for asked_location, place in places.items()
            if asked_location.offset < self.output.there.get(place, 0)
        }


def events() -> list[ListSource]:
    """Two groups of three, each with a text of another length, and a tick after them."""
    rows_by_partition: list[list[bytes]] = [[] for _ in range(PARTITIONS)]
    for number, text in enumerate(TEXTS * 2):
        start = {"group_id": f"g{number // 3}", "group_size": 3, "example_id": None}
        for event in make_episode(f"e{number}", reward=None, start=start):
            if isinstance(event, TurnRecorded):
                event = replace(event, completion=replace(event.completion, content=text))
            rows_by_partition[by_checksum(event.root_episode_id.encode(), PARTITIONS)].append(encode(event))
    for rows in rows_by_partition:
        rows.append(encode(make_tick(0)))
    return [
        ListSource(n, [Raw(i, b"", data) for i, data in enumerate(rows)]) for n, rows in enumerate(rows_by_partition)
    ]


def stages(**judging: Any) -> list[AnyStage]:
    """The whole flow of a run whose groups are judged."""
    all_stages = [*namespace_stages(AssemblyConfig(), ScoringConfig(rewards=())), *run_stages(RUN, registry=REGISTRY)]
    return [
        GroupScoringStage(RUN, registry=REGISTRY, **judging) if isinstance(stage, GroupScoringStage) else stage
        for stage in all_stages
        if stage.name != "alias"
    ]


@pytest.mark.parametrize("lanes", [0, 1, 2])
async def test_the_trajectories_of_a_group_are_released_before_they_are_judged(lanes: int) -> None:
    output = HoldingOutput()
    topics = Topics(output)
    fresh = stages(payload=WrittenPayload(output, topics))
    options: dict[str, Any] = {"lanes": lanes, "with_headers": False} if lanes else {}
    run = replayed_in_lanes if lanes else replayed
    _, frames = await run(fresh, events(), partitions=PARTITIONS, output=output, **options)
    records = {topic: [decode(data) for (name, _), rows in frames.items() if name == topic for _, data in rows]
               for topic in ("run-log", "drops")}  # fmt: skip
    groups = [record for record in records["run-log"] if isinstance(record, Group)]
    assert [sorted(member.components["length"] for member in group.members) for group in groups] == [
        [1.0, 2.0, 3.0]
    ] * 2
    assert [sorted(member.reward for member in group.members) for group in groups] == [[1.0, 2.0, 3.0]] * 2
    assert records["drops"] == []
    assert {location.topic for location in topics.asked_locations} == {"replay.trajectories"}
    assert len(topics.asked_locations) == 6


@dataclass(frozen=True, slots=True)
class Standing:
    """Trajectories that stand somewhere already."""

    there: Mapping[Location, Trajectory]

    async def fetch(self, locations: Collection[Location]) -> Mapping[Location, Trajectory]:
        return {location: self.there[location] for location in locations if location in self.there}


async def test_a_forgotten_member_of_a_group_that_had_closed_is_lost_to_the_judge() -> None:
    """A closed group names its members by location, so that the range tells nothing of whose they are."""
    sub_agents = make_trajectory("e4", root_episode_id="e0")
    trajectories = [*(make_trajectory(f"e{number}") for number in range(4)), sub_agents]
    there = {
        Location(topic="trajectories", partition=0, offset=at): trajectory for at, trajectory in enumerate(trajectories)
    }
    asked_episodes = list[str]()

    def hear_group(group: Sequence[Trajectory], context: RewardContext) -> list[float | None]:
        asked_episodes.extend(member.episode_id for member in group)
        return [1.0 for _ in group]

    payload = WrittenPayload(MemoryOutput(), Standing(there), frozenset(("e0",)))
    registry = {**BUILT_IN, "lengths": RewardFunction(hear_group, per="group", quick=True)}
    stage = GroupScoringStage(RUN, registry=registry, payload=payload)
    group = make_group("g", [0.0] * len(trajectories))
    members = [
        replace(member, trajectory_id=trajectory.trajectory_id, episode_id=trajectory.episode_id, location=at)
        for member, (at, trajectory) in zip(group.members, there.items(), strict=True)
    ]
    closed = ClosedGroup(group=replace(group, members=tuple(members)))
    tick = make_tick(0)
    source = [ListSource(0, [Raw(0, b"", encode(closed)), Raw(1, b"", encode(tick))])]
    _, frames = await replayed([stage], source, partitions=1)
    assert asked_episodes == ["e1", "e2", "e3"]
    (judged,) = (decode(data) for _, data in frames["run-log", 0] if isinstance(decode(data), Group))
    assert [member.episode_id for member in judged.members] == asked_episodes
    drops = [decode(data) for _, data in frames["drops", 0]]
    assert [(drop.unit_id, drop.reason) for drop in drops] == [
        (trajectories[at].trajectory_id, "payload_lost") for at in (0, 4)
    ]


async def test_a_group_being_judged_when_a_shadow_stops_is_left_to_the_next_start() -> None:
    trajectories = [make_trajectory(f"e{number}") for number in range(3)]
    there = {
        Location(topic="trajectories", partition=0, offset=at): trajectory for at, trajectory in enumerate(trajectories)
    }
    group = make_group("g", [0.0] * len(trajectories))
    members = [
        replace(member, trajectory_id=trajectory.trajectory_id, location=at)
        for member, (at, trajectory) in zip(group.members, there.items(), strict=True)
    ]
    closed = encode(ClosedGroup(group=replace(group, members=tuple(members))))
    stop, ended = asyncio.Event(), asyncio.Event()

    async def busy(group: Sequence[Trajectory], context: RewardContext) -> list[float | None]:
        stop.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        return []

    for judge in (RewardFunction(busy, per="group"), REGISTRY["lengths"]):
        source, output = [ListSource(0, [Raw(0, b"", closed), Raw(1, b"", encode(make_tick(0)))])], MemoryOutput()
        payload = WrittenPayload(output, Standing(there))
        stage = GroupScoringStage(RUN, registry={**BUILT_IN, "lengths": judge}, payload=payload)
        if judge is not REGISTRY["lengths"]:
            with pytest.raises(StoppedError):
                await asyncio.wait_for(replayed([stage], source, partitions=1, output=output, stop=stop), 120)
            assert (output.frames, ended.is_set()) == ({}, True)
        else:
            await replayed([stage], source, partitions=1, output=output, stop=asyncio.Event())
            assert [type(decode(data)) for _, data in output.frames["run-log", 0]] == [Group]
