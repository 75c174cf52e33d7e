"""A tick goes into an input once all that write there have passed it, and not before."""

from hypothesis import given
from hypothesis import strategies as st

from rollbus.schemas.records.control import ConfigApplied
from rollbus.schemas.topics import Topic
from rollbus.streams.state.table import NO_TICK
from rollbus.streams.state.watermarks import Holder, Hop, Watermarks, hops, in_full, shortened

PARTITIONS = 2


def configured_stages(*names: str) -> list[ConfigApplied]:
    pairs = [name.partition(".") for name in names]
    return [ConfigApplied(stage=stage, run_id=run or None, config_hash="h", content="{}") for stage, _, run in pairs]


NAMES = ("assembly", "scoring", "grouping.main", "curriculum.main")
ALL = (
    "assembly",
    "scoring",
    "grouping.main",
    "group-scoring.main",
    "curriculum.main",
    "observing.main",
    "delivery.main",
)


def count(topic: Topic) -> int:
    return 1 if topic.partitions == "one" else PARTITIONS


def watermarks(*names: str) -> Watermarks:
    return Watermarks(hops(configured_stages(*names)), count)


def hop_of(marks: Watermarks, topic: str) -> Hop:
    return next(hop for hop in marks.hops if hop.topic.name == topic)


def test_each_input_waits_for_the_stages_that_write_into_it() -> None:
    writers = {hop.topic.name: [stage for stage, _ in hop.writers] for hop in hops(configured_stages(*NAMES))}
    assert writers == {
        "aliases": [],
        "episode-events": ["alias"],
        "trajectories": ["assembly"],
        "scores": ["scoring"],
        "run-log": ["grouping.main"],
    }
    every = {hop.topic.name: [stage for stage, _ in hop.writers] for hop in hops(configured_stages(*ALL))}
    assert every["closed-groups"] == ["grouping.main"]
    assert every["run-log"] == ["grouping.main", "group-scoring.main", "delivery.main"]
    assert every["delivery-log"] == ["observing.main"]


def test_no_input_waits_for_itself() -> None:
    """The trainer closes the loop from batches to the run's log, and no tick waits for a trainer."""
    waits_for = {hop.topic.name: {topic.name for _, topic in hop.writers} for hop in hops(configured_stages(*ALL))}
    done: set[str] = set()
    while ready := {name for name, inputs in waits_for.items() if inputs <= done} - done:
        done |= ready
    assert done == waits_for.keys()


def test_a_tick_waits_for_the_slowest_partition() -> None:
    marks = watermarks(*NAMES)
    marks.note("assembly", 0, 7)
    assert marks.holder(hop_of(marks, "trajectories")) == Holder("assembly", 1, NO_TICK)
    marks.note("assembly", 1, 5)
    assert marks.limit(hop_of(marks, "trajectories"), 9) == 5
    assert marks.limit(hop_of(marks, "aliases"), 9) == 9


@given(st.permutations([("assembly", number, tick) for number in range(PARTITIONS) for tick in (1, 2, 3)]))
def test_reports_in_any_order_give_the_same_watermark(reports: list[tuple[str, int, int]]) -> None:
    marks = watermarks(*NAMES)
    for report in reports:
        marks.note(*report)
    assert marks.limit(hop_of(marks, "trajectories"), 9) == 3


def test_a_new_run_holds_up_time_only_after_it_has_caught_up() -> None:
    marks = watermarks(*NAMES)
    assert marks.admit_members()
    marks = Watermarks(
        hops(configured_stages(*NAMES, "grouping.new")), count, {"run-log": 5}, marks.passed, marks.members
    )
    for number in range(PARTITIONS):
        marks.note("grouping.main", number, 8)
        marks.note("grouping.new", number, 2)
    run_log = hop_of(marks, "run-log")
    assert not marks.admit_members()
    assert marks.limit(run_log, 9) == 8
    for number in range(PARTITIONS):
        marks.note("grouping.new", number, 6)
    assert marks.admit_members()
    assert marks.limit(run_log, 9) == 6


def test_a_run_that_was_removed_holds_up_nothing() -> None:
    marks = watermarks(*NAMES, "grouping.old")
    marks.admit_members()
    marks = Watermarks(hops(configured_stages(*NAMES)), count, {}, {"grouping.main": {0: 4, 1: 4}}, marks.members)
    assert marks.limit(hop_of(marks, "run-log"), 9) == 4


@given(st.dictionaries(st.integers(0, 40), st.integers(NO_TICK, 3)))
def test_a_shortened_report_can_be_restored(ticks: dict[int, int]) -> None:
    assert in_full(shortened(ticks)) == ticks
