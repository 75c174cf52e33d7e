"""Closed groups are judged as wholes: what is said is written down, and who misbehaves harms one group only."""

import asyncio
import math
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import pytest

from rollbus.schemas.errors import ConfigurationError, UnavailableError
from rollbus.schemas.records.config import ComponentConfig, GroupingConfig, RewardConfig, RunConfig, ScoringConfig
from rollbus.schemas.records.drops import Drop
from rollbus.schemas.records.groups import ClosedGroup, Group
from rollbus.schemas.records.trajectories import Location, Trajectory
from rollbus.streams.pipeline import run_stages
from rollbus.streams.rewards.contract import RewardContext, RewardFunction
from rollbus.streams.rewards.registry import BUILT_IN, check
from rollbus.streams.stages.scoring.group_scoring import GroupScoringStage, JudgedGroup, JudgedGroups
from rollbus.streams.stages.scoring.stage import ScoringStage
from rollbus.streams.state.stage import Incoming
from rollbus.streams.state.stage_state import REMEMBER_MS
from tests.builders import START_MS, make_config, make_group, make_member, make_tick, make_trajectory
from tests.stepper import Stepper, splits


def ranks(group: Sequence[Trajectory], context: RewardContext) -> list[float | None]:
    """The longer the text of the only turn, the better."""
    lengths = sorted({len(member.turns[0].completion.content or "") for member in group})
    return [float(lengths.index(len(member.turns[0].completion.content or ""))) for member in group]


async def _hang(group: Sequence[Trajectory], context: RewardContext) -> list[float | None]:
    await asyncio.Event().wait()
    return []


def _raise(group: Sequence[Trajectory], context: RewardContext) -> list[float | None]:
    raise RuntimeError("user code")


def _without_end(group: Sequence[Trajectory], context: RewardContext) -> Iterator[float]:
    while True:
        yield 1.0


def _slow_generator(group: Sequence[Trajectory], context: RewardContext) -> Iterator[float]:
    for _ in group:
        yield float(threading.Event().wait(600))


async def _later_without_end(group: Sequence[Trajectory], context: RewardContext) -> Iterator[float]:
    return _without_end(group, context)


async def _later_slow_generator(group: Sequence[Trajectory], context: RewardContext) -> Iterator[float]:
    return _slow_generator(group, context)


class _Endless:
    """What can be begun again and again, and never ends."""

    def __iter__(self) -> Iterator[float]:
        while True:
            yield 1.0


REGISTRY = {
    **BUILT_IN,
    "later_without_end": RewardFunction(_later_without_end, per="group"),  # type: ignore[arg-type]
    "later_slow_generator": RewardFunction(_later_slow_generator, per="group"),  # type: ignore[arg-type]
    "endless": RewardFunction(lambda group, context: _Endless(), per="group"),  # type: ignore[arg-type]
    "ranks": RewardFunction(ranks, per="group", quick=True),
    "slow_ranks": RewardFunction(ranks, per="group"),
    "hang": RewardFunction(_hang, per="group"),
    "raise": RewardFunction(_raise, per="group"),
    "without_end": RewardFunction(_without_end, per="group"),  # type: ignore[arg-type]
    "slow_generator": RewardFunction(_slow_generator, per="group"),  # type: ignore[arg-type]
    "short": RewardFunction(lambda group, context: [1.0], per="group"),
    "number": RewardFunction(lambda group, context: 1.0, per="group"),
    "mapping": RewardFunction(lambda group, context: dict(enumerate("abc")), per="group"),  # type: ignore[arg-type]
    "set": RewardFunction(lambda group, context: {0.0, 0.5, 1.0}, per="group"),  # type: ignore[arg-type]
    "bytes": RewardFunction(lambda group, context: b"abc", per="group"),
    "silent": RewardFunction(lambda group, context: None, per="group"),
    "one_nan": RewardFunction(lambda group, context: [math.nan, *range(len(group) - 1)], per="group"),
    "none_each": RewardFunction(lambda group, context: [None for _ in group], per="group"),
    "one_none": RewardFunction(lambda group, context: [None, *range(len(group) - 1)], per="group"),
}
TEXTS = ("a", "bb", "ccc")


class Texts:
    """Trajectories by offset, and what was asked for."""

    def __init__(self, *texts: str) -> None:
        self.texts, self.fetch_count = texts, 0

    async def fetch(self, locations: Collection[Location]) -> Mapping[Location, Trajectory]:
        self.fetch_count += 1
        return {
            location: make_trajectory(f"t{location.offset}", text=self.texts[location.offset])
            for location in locations
            if location.offset < len(self.texts)
        }


def component(kind: str, **fields: Any) -> ComponentConfig:
    """The limit is short for what exceeds it by far, and long for what must not exceed it on a busy machine either."""
    limit_s = 0.05 if kind in ("hang", "slow_generator", "later_slow_generator") else 600.0
    given: dict[str, Any] = {"type": kind, "name": kind, "timeout_s": limit_s}
    return ComponentConfig(**(given | fields))


def run_with(*rewards: ComponentConfig, **grouping: Any) -> RunConfig:
    return RunConfig(grouping=GroupingConfig(rewards=rewards, advantage="mean", **grouping))


def judging(*rewards: ComponentConfig, texts: Sequence[str] = TEXTS, **grouping: Any) -> tuple[Stepper, Texts]:
    payload = Texts(*texts)
    stage = GroupScoringStage(run_with(*rewards, **grouping), registry=REGISTRY, payload=payload, attempts=1)
    stepper = Stepper(stage)
    stepper.tick()
    return stepper, payload


def closed_group(name: str = "g1", size: int = 3, rewards: Sequence[float] | None = None) -> ClosedGroup:
    members = tuple(
        make_member(
            f"t{offset}",
            (rewards or [0.0] * size)[offset],
            location=Location(topic="rollbus.trajectories", partition=0, offset=offset),
        )
        for offset in range(size)
    )
    return ClosedGroup(group=make_group(name, [0.0] * size, members=members))


def test_a_function_over_the_group_gives_rewards_components_and_advantages() -> None:
    stepper, _ = judging(component("ranks", weight=2.0))
    (group,) = stepper.feed(closed_group(rewards=[1.0, 0.0, 0.0]))
    assert [member.reward for member in group.members] == [1.0, 2.0, 4.0]
    assert [member.components["ranks"] for member in group.members] == [0.0, 1.0, 2.0]
    assert sum(member.advantage for member in group.members) == pytest.approx(0)
    assert (group.reward_min, group.reward_max, group.has_signal) == (1.0, 4.0, True)
    assert group.reward_version != closed_group().group.reward_version


@pytest.mark.parametrize("kind", ["ranks", "slow_ranks"])
def test_a_group_delivered_again_is_judged_once_even_after_a_restart(kind: str) -> None:
    stepper, payload = judging(component(kind))
    assert len(stepper.outputs([closed_group(), closed_group()])) == 1
    stepper.restore()
    assert stepper.feed(closed_group()) == []
    assert payload.fetch_count == 1


@pytest.mark.parametrize(
    ("kind", "word"),
    [
        *(("hang", "within 0.05 s"), ("raise", "user code"), ("short", "1 values for 3"), ("number", "not a sequence")),
        *(("without_end", "4 values for 3"), ("slow_generator", "within 0.05 s")),
        *(("later_without_end", "4 values for 3"), ("later_slow_generator", "within 0.05 s")),
        ("endless", "4 values for 3"),
        *(("mapping", "not a sequence"), ("set", "not a sequence"), ("bytes", "not a sequence")),
    ],
)
def test_a_function_that_fails_costs_its_group_and_no_other(kind: str, word: str) -> None:
    stepper, _ = judging(component(kind))
    (drop,) = stepper.feed(closed_group())
    assert (drop.unit, drop.reason, drop.stage, drop.run_id) == ("group", "score_failed", "group-scoring", "main")
    assert (drop.trajectory_ids, word in drop.detail) == (("t0", "t1", "t2"), True)


def test_a_function_without_an_answer_gives_a_missing_score() -> None:
    stepper, _ = judging(component("silent"))
    (drop,) = stepper.feed(closed_group())
    assert (drop.unit, drop.reason) == ("group", "score_missing")


@pytest.mark.parametrize(("kind", "reason"), [("one_nan", "score_failed"), ("one_none", "score_missing")])
def test_a_member_without_a_number_leaves_before_the_mean(kind: str, reason: str) -> None:
    stepper, _ = judging(component(kind))
    drop, group = stepper.feed(closed_group())
    assert (drop.unit, drop.unit_id, drop.reason) == ("trajectory", "t0", reason)
    assert [(member.trajectory_id, member.advantage) for member in group.members] == [("t1", -0.5), ("t2", 0.5)]


def test_the_rest_of_a_group_must_still_be_a_group() -> None:
    stepper, _ = judging(component("one_nan"))
    first, rest = stepper.feed(closed_group(size=2))
    assert (first.unit, first.reason, first.trajectory_ids) == ("trajectory", "score_failed", ("t0",))
    assert (rest.unit, rest.reason, rest.trajectory_ids) == ("group", "incomplete_group", ("t1",))


def test_a_member_without_payload_is_dropped_and_a_last_one_is_not_judged() -> None:
    stepper, _ = judging(component("ranks"), texts=TEXTS[:2])
    drop, group = stepper.feed(closed_group())
    assert (drop.reason, drop.unit_id, len(group.members)) == ("payload_lost", "t2", 2)
    stepper, _ = judging(component("raise"), texts=TEXTS[:1])
    drops = stepper.feed(closed_group(size=2))
    assert [(drop.reason, drop.trajectory_ids) for drop in drops] == [
        ("payload_lost", ("t1",)),
        ("incomplete_group", ("t0",)),
    ]


def test_a_configuration_in_the_log_holds_from_its_place_on() -> None:
    stepper, _ = judging(component("ranks"))
    config = make_config("group-scoring", run_with(component("ranks", weight=10.0)), run_id="main")
    before, after = (out.record for out in stepper.outputs([closed_group("g1"), config, closed_group("g2")]))
    assert [group.reward_max for group in (before, after)] == [2.0, 20.0]


def test_other_runs_and_functions_in_the_wrong_place_are_left_out() -> None:
    stepper, payload = judging(component("ranks"))
    assert stepper.feed(ClosedGroup(group=make_group("g", run_id="other"))) == []
    assert payload.fetch_count == 0
    with pytest.raises(ConfigurationError, match=r"over a trajectory; it goes into scoring\.rewards"):
        GroupScoringStage(run_with(component("feedback")))
    with pytest.raises(ConfigurationError, match=r"over a group; it goes into a run's grouping\.rewards"):
        ScoringStage(ScoringConfig(rewards=(RewardConfig(type="judge_relative"),)), keep_ms=1)
    with pytest.raises(ConfigurationError, match="no function 'nobody'"):
        check(REGISTRY, (component("nobody"),), "group")


@pytest.mark.parametrize(
    ("kind", "size", "texts"),
    [
        *((kind, size, TEXTS) for kind in ("one_none", "one_nan", "silent", "raise") for size in (2, 3)),
        ("ranks", 3, TEXTS[:2]),
        ("ranks", 3, TEXTS[:1]),
        ("ranks", 2, ()),
        ("none_each", 2, TEXTS),
    ],
)
def test_a_replay_gives_each_member_that_left_the_drop_of_live(kind: str, size: int, texts: Sequence[str]) -> None:
    judge = component(kind)
    live, _ = judging(judge, texts=texts)
    live_outputs = live.feed(closed_group(size=size))
    judged_groups = JudgedGroups({"main"})
    for output in live_outputs:
        judged_groups.take(output)

    async def find_recorded(group: Group, rewards: Sequence[ComponentConfig]) -> JudgedGroup:
        return judged_groups.of(group)

    again = Stepper(GroupScoringStage(run_with(judge), registry=REGISTRY, find_judged=find_recorded))
    again.tick()
    assert again.feed(closed_group(size=size)) == live_outputs


def test_a_group_too_small_for_live_to_judge_has_no_answer() -> None:
    left_over = Drop(unit="group", unit_id="g1", reason="incomplete_group", stage="group-scoring", run_id="main",
                     detail="3 of 3 members are left after judging", dropped_at_ms=0)  # fmt: skip

    async def find_recorded(group: Group, rewards: Sequence[ComponentConfig]) -> JudgedGroup:
        return JudgedGroup(left_over)  # live wanted four

    again = Stepper(GroupScoringStage(run_with(component("ranks")), registry=REGISTRY, find_judged=find_recorded))
    (drop,) = again.feed(closed_group())
    assert (drop.unit, drop.reason, len(drop.trajectory_ids)) == ("group", "score_failed", 3)


def test_a_run_that_asks_for_no_such_reward_has_no_such_stage() -> None:
    assert [stage.name for stage in run_stages(RunConfig())] == ["grouping.main", "curriculum.main"]
    assert [stage.name for stage in run_stages(run_with(component("ranks")), registry=REGISTRY)] == [
        "grouping.main",
        "group-scoring.main",
        "curriculum.main",
    ]


def test_groups_and_calls_in_flight_are_bounded() -> None:
    held_groups = calls = most_held = most_calls = 0

    class Counted(Texts):
        async def fetch(self, locations: Collection[Location]) -> Mapping[Location, Trajectory]:
            nonlocal held_groups, most_held
            held_groups += 2  # for two functions
            most_held = max(most_held, held_groups)
            await asyncio.sleep(0)
            return await super().fetch(locations)

    async def grades(group: Sequence[Trajectory], context: RewardContext) -> list[float | None]:
        nonlocal held_groups, calls, most_calls
        calls += 1
        most_calls = max(most_calls, calls)
        await asyncio.sleep(0)
        calls, held_groups = calls - 1, held_groups - 1
        return [float(place) for place in range(len(group))]

    names = ("grades", "marks")
    registry = {**BUILT_IN, **{name: RewardFunction(grades, per="group") for name in names}}
    run = run_with(*map(component, names))
    stepper = Stepper(GroupScoringStage(run, registry=registry, payload=Counted(*TEXTS), concurrency=2))
    outputs = stepper.outputs([closed_group(f"g{number}") for number in range(20)])
    assert (len(outputs), most_held / 2, most_calls) == (20, 2, 2)


async def test_no_group_is_judged_when_a_fetch_fails() -> None:
    """The batch begins again then, and asks about all of them again: calls that go on would come on top."""
    call_count = running = 0

    class Broken(Texts):
        async def fetch(self, locations: Collection[Location]) -> Mapping[Location, Trajectory]:
            trajectories = await super().fetch(locations)
            if self.fetch_count == 2:
                raise UnavailableError("the broker is away")
            return trajectories

    async def grades(group: Sequence[Trajectory], context: RewardContext) -> list[float | None]:
        nonlocal call_count, running
        call_count, running = call_count + 1, running + 1
        try:
            await asyncio.sleep(0.01)
        finally:
            running -= 1
        return [1.0] * len(group)

    registry = {**BUILT_IN, "grades": RewardFunction(grades, per="group")}
    run = run_with(component("grades"))
    stage = GroupScoringStage(run, registry=registry, payload=Broken(*TEXTS), concurrency=2)
    groups = [
        Incoming(closed_group(f"g{number}"), "key", Location(topic="t", partition=0, offset=number), b"")
        for number in range(20)
    ]
    with pytest.raises(UnavailableError):
        await stage.answer(stage.new_state(), groups)
    before = call_count
    await asyncio.sleep(0.1)
    assert (call_count - before, running) == (0, 0)


def test_every_split_into_batches_judges_the_same_groups() -> None:
    other = run_with(component("ranks", weight=2.0))
    days = [make_tick(number, stream_time_ms=START_MS + number * REMEMBER_MS) for number in (1, 2)]
    records = [
        closed_group("g1"), closed_group("g1"), days[0], closed_group("g2"), days[1], closed_group("g1"),
        make_config("group-scoring", other, run_id="main"), closed_group("g2"), closed_group("g3"),
    ]  # fmt: skip
    outcomes = set()
    for batches in splits(records):
        stepper, texts = judging(component("ranks"))
        outputs = [repr(out) for batch in batches for out in stepper.outputs(batch)]
        outcomes.add((texts.fetch_count, *outputs))
    assert len(outcomes) == 1
