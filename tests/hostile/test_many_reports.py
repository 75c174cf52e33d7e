"""Who may report on an episode can report often, late, from the future and over others' heads: none of it decides."""

from dataclasses import replace
from typing import Any

from rollbus.consumers.clickhouse.rows.rows import part_rows
from rollbus.consumers.clickhouse.store.origin import Origin
from rollbus.schemas.records.config import AssemblyConfig
from rollbus.schemas.records.trajectories import RewardRevised, Trajectory
from rollbus.streams.exactly_once.processing import APPEND_TIME
from rollbus.streams.stages.assembly.stage import AssemblyStage
from tests.builders import START_MS, make_episode, make_reward
from tests.hostile.attacker import CHECKERS_KEY, Door, keys
from tests.stepper import Stepper, reasons

YEAR_2100_MS = 4_102_444_800_000
ORIGIN = Origin("n.", "trajectories", 0, 0, 0)


def closed_episode(**config: Any) -> Stepper:
    stepper = Stepper(AssemblyStage(AssemblyConfig(**config)))
    stepper.tick()
    stepper.feed(*make_episode(reward=None))
    return stepper


def thumbs(number: int, **fields: Any) -> Any:
    return make_reward(value=(number % 2) * 2 - 1.0, key=f"k{number}", name="thumbs", source="user", **fields)


def rows_of(records: list[Any]) -> int:
    """How many rows of `trajectory_rewards` follow."""
    revised = (record for record in records if isinstance(record, RewardRevised))
    return sum(len(part_rows(record, ORIGIN)) for record in revised)


def test_a_thousand_reports_are_a_row_each_and_a_revision_per_tick() -> None:
    """They were 501,501 rows."""
    stepper = closed_episode()
    records = stepper.feed(*map(thumbs, range(1_000)))
    records += stepper.tick(1) + stepper.tick(1)
    assert [record.revision for record in records] == [1, 2]
    assert rows_of(records) == 1_000
    stepper.restore()
    assert stepper.tick(100) == []


def test_each_report_above_the_limits_is_one_drop() -> None:
    stepper = closed_episode()
    reports = [thumbs(number) for number in range(3_000)]
    records = stepper.feed(*reports, *reports[-10:])
    stepper.restore()
    records += stepper.feed(*reports[:10], *reports[-10:])
    assert reasons(records) == ["too_many_reports"] * 2_000
    names = [replace(thumbs(number), name=f"n{number}", event_id=f"n{number}") for number in range(9_500)]
    assert len(reasons(stepper.feed(*names))) == 500


def test_reports_that_come_one_by_one_add_a_row_each() -> None:
    stepper, records = closed_episode(), list[Any]()
    for number in range(300):
        records += stepper.feed(thumbs(number)) + stepper.tick(1)
    assert rows_of(records) == 300


def test_reports_above_the_limits_leave_no_hole_in_an_open_episode() -> None:
    stepper = Stepper(AssemblyStage(AssemblyConfig(max_reports_per_name=3)))
    stepper.tick()
    *before, ended, closed = make_episode(reward=None)
    count = len(before)
    rewards = [make_reward(sequence=count + number, name="thumbs") for number in range(5)]
    ended, closed = (
        replace(ended, sequence=count + 5, event_id="end"),
        replace(closed, sequence=count + 6, count=count + 6),
    )
    records = stepper.feed(*before, *rewards, ended, replace(closed, event_id="close"))
    assert reasons(records) == ["too_many_reports"] * 2
    (trajectory,) = [record for record in records if isinstance(record, Trajectory)]
    assert (len(trajectory.rewards), trajectory.trainable) == (3, True)


async def test_one_principals_reports_take_no_room_from_another_principal() -> None:
    signing = keys(sources={"checker": CHECKERS_KEY, "judge": "the-judges-own-key"})
    door = Door(AssemblyStage(AssemblyConfig(max_reports_per_name=2)), signing)
    for event in make_episode("e1", turns=1, reward=None):
        await door.write(event)
    dropped = [reasons(await door.write_signed(thumbs(number), "judge")) for number in range(4)]
    assert dropped == [[], [], ["too_many_reports"], ["too_many_reports"]]
    assert reasons(await door.write_signed(thumbs(9), "checker")) == []
    assert reasons(await door.write(thumbs(10))) == []


async def reports_in_broker_order(*reports: tuple[Any, int]) -> list[float]:
    """Send reports, each at a time of the broker's clock; return the values in force, oldest first."""
    door = Door(AssemblyStage(AssemblyConfig()), keys())
    for report, taken_ms in reports:
        await door.write(report, timestamp=taken_ms, timestamp_type=APPEND_TIME)
    outputs = [
        output_record
        for event in make_episode("e1", turns=1, reward=None)
        for output_record in await door.write(event, timestamp=START_MS + 9_000, timestamp_type=APPEND_TIME)
    ]
    (trajectory,) = [output for output in outputs if isinstance(output, Trajectory)]
    assert max(trajectory.started_at_ms, trajectory.ended_at_ms) <= START_MS + 9_000
    return [reward.value for reward in trajectory.rewards]


async def test_a_report_from_the_year_2100_is_not_the_last_word() -> None:
    forged = make_reward("e1", -1.0, key="forged", at_ms=YEAR_2100_MS)
    honest = make_reward("e1", 1.0, key="honest", at_ms=START_MS - 3_600_000)
    assert await reports_in_broker_order((forged, START_MS), (honest, START_MS + 1)) == [-1.0, 1.0]


async def test_a_retraction_from_the_year_2100_withdraws_no_later_report() -> None:
    silence = make_reward("e1", None, key="silence", retracted=True, at_ms=YEAR_2100_MS)
    before, after = make_reward("e1", 0.25, key="before"), make_reward("e1", 0.5, key="after")
    assert await reports_in_broker_order((before, START_MS), (silence, START_MS), (after, START_MS)) == [0.5]


async def test_an_event_from_the_year_2100_closes_its_episode_by_the_brokers_clock() -> None:
    door = Door(AssemblyStage(AssemblyConfig()), keys())
    events = make_episode("e1", turns=1, reward=None)
    events[-2] = replace(events[-2], occurred_at_ms=YEAR_2100_MS, episode_started_at_ms=YEAR_2100_MS)
    records: list[Any] = []
    for event in events:
        records += await door.write(event, timestamp=START_MS + 500, timestamp_type=APPEND_TIME)
    (trajectory,) = records
    assert trajectory.ended_at_ms == START_MS + 500


def test_a_source_replaces_no_report_of_another_source() -> None:
    stepper = closed_episode()
    honest = make_reward(value=1.0, key="user-17", name="thumbs", source="user")
    stepper.feed(honest)
    strange = make_reward(value=-1.0, key="x", name="thumbs", source="stranger", supersedes=honest.event_id)
    silence = make_reward(value=None, key="y", name="thumbs", source="stranger", retracted=True)
    stepper.feed(strange, silence, make_reward(value=1.0, key="z"))
    (revised,) = stepper.tick(1)
    assert [reward.value for reward in revised.rewards if reward.name == "thumbs"] == [1.0]


async def test_a_principal_replaces_no_report_of_another_principal() -> None:
    signing = keys(sources={"web-1": CHECKERS_KEY, "web-2": "the-second-hosts-key"})
    door = Door(AssemblyStage(AssemblyConfig()), signing)
    honest = make_reward("e1", 1.0, key="user-17", name="thumbs", source="user")
    await door.write_signed(honest, "web-1")
    strange = make_reward("e1", -1.0, key="x", name="thumbs", source="user", supersedes=honest.event_id)
    await door.write_signed(strange, "web-2")
    await door.write(make_reward("e1", None, key="y", name="thumbs", source="user", retracted=True))
    records = [output for event in make_episode("e1", turns=1, reward=None) for output in await door.write(event)]
    (trajectory,) = [record for record in records if isinstance(record, Trajectory)]
    assert [(reward.value, reward.principal) for reward in trajectory.rewards] == [(1.0, "web-1"), (-1.0, "web-2")]
