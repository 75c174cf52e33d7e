"""Two outcomes of one range: what differs is named with its cause, and what the edge has cut is told apart."""

from dataclasses import replace
from typing import Any

import pytest

from rollbus.schemas.errors import ConfigurationError
from rollbus.schemas.ids import trajectory_id
from rollbus.schemas.records.drops import Drop
from rollbus.schemas.records.groups import CurriculumState, TrainingBatch
from rollbus.schemas.records.replays import ReplayManifest
from rollbus.streams.replay.compare.differences import ReplayComparison, compare
from rollbus.streams.replay.compare.live import common_span, last_of_all, made_by, ticked_span
from rollbus.streams.replay.compare.side import CommonTime, Side, take_in_span
from tests.builders import START_MS, make_group, make_score, make_trajectory

SPAN = CommonTime(START_MS, START_MS + 60_000)


def side_of(name: str, *records: Any, span: CommonTime = SPAN) -> Side:
    return take_in_span(records, Side(name), span)


def rows_of(comparison: ReplayComparison) -> list[tuple[str, str, str, bool, int]]:
    return [
        (difference.kind, difference.what, difference.cause, difference.edge, difference.count)
        for difference in comparison.differences
    ]


def score_of(episode: str, value: float | None, **fields: Any) -> Any:
    return make_score(trajectory_id(episode), value, episode_id=episode, **fields)


def group_of(name: str, *episodes: str, **fields: Any) -> Any:
    group = make_group(name, [float(n) for n in range(len(episodes))], **fields)
    members = [
        replace(m, trajectory_id=trajectory_id(e), episode_id=e) for m, e in zip(group.members, episodes, strict=True)
    ]
    return replace(group, members=tuple(members))


def drop_of(reason: str, *, unit: Any = "episode", unit_id: str = "e1", run: str | None = None, stage: str = "assembly",
            ids: tuple[str, ...] = ()) -> Drop:  # fmt: skip
    return Drop(unit=unit, unit_id=unit_id, reason=reason, stage=stage, run_id=run, trajectory_ids=ids, dropped_at_ms=0)


def admitting(*groups: str) -> CurriculumState:
    return CurriculumState(run_id="main", window=0, mode="harness", percentile=0.3, last_expansion_window=-1,
                           admitted_group_ids=groups, closed_at_ms=0)  # fmt: skip


def test_equal_sides_have_no_difference() -> None:
    records = (make_trajectory("e1"), score_of("e1", 1.0), group_of("g", "e1", "e2"))
    comparison = compare(side_of("live", *records), side_of("b", *records), SPAN)
    assert rows_of(comparison) == []
    assert comparison.same == {"trajectory": 1, "score": 1, "group": 1, "curriculum": 1}


def test_another_reward_is_the_cause_of_other_scores() -> None:
    live = side_of("live", make_trajectory("e1"), score_of("e1", 1.0))
    replay = side_of("b", make_trajectory("e1"), score_of("e1", 0.0, reward_version="r2"))
    comparison = compare(live, replay, SPAN)
    assert rows_of(comparison) == [("score", "changed", "another reward", False, 1)]
    assert comparison.differences[0].examples == (f"{trajectory_id('e1')}: 1 → 0",)


def test_scores_that_differ_in_a_late_digit_are_not_shown_as_equal() -> None:
    live, replay = (side_of("b", make_trajectory("e1"), score_of("e1", value)) for value in (0.1234567, 0.1234568))
    comparison = compare(live, replay, SPAN)
    assert comparison.differences[0].examples == (f"{trajectory_id('e1')}: 0.1234567 → 0.1234568",)


def test_a_group_that_is_missing_says_what_became_of_its_members() -> None:
    trajectories = [make_trajectory("e1"), make_trajectory("e2")]
    live = side_of("live", *trajectories, group_of("g", "e1", "e2"))
    ids = (trajectory_id("e1"), trajectory_id("e2"))
    dropped = drop_of("incomplete_group", unit="group", unit_id="x", run="main", stage="grouping", ids=ids)
    assert rows_of(compare(live, side_of("b", *trajectories, dropped), SPAN)) == [
        ("group", "only in live", "dropped as incomplete_group", False, 1)
    ]
    regrouped = side_of("b", *trajectories, group_of("h", "e1", "e2", group_key="other"))
    assert {row[:3] for row in rows_of(compare(live, regrouped, SPAN))} == {
        ("group", "only in live", "its members are in other groups"),
        ("group", "only in b", "its members are in other groups"),
    }


def test_differences_of_the_edge_are_counted_apart() -> None:
    late = make_trajectory("e2", assembled_at_ms=START_MS + 99_000)
    begun_before = drop_of("missing_events", unit_id="e1")
    live = side_of("live", make_trajectory("e1"), late, span=CommonTime())
    comparison = compare(live, side_of("b", begun_before), SPAN)
    assert rows_of(comparison) == [("trajectory", "only in live", "the range's edge", True, 2)]
    assert comparison.inside == ()


def test_records_behind_the_last_tick_are_differences_of_the_edge() -> None:
    """A range ends with its last tick, or somewhere behind it: live went on before the next one."""
    last, before = (
        make_trajectory(name, assembled_at_ms=START_MS + ms) for name, ms in (("e1", 60_000), ("e2", 59_999))
    )
    comparison = compare(
        side_of("live", last, before, group_of("g", "e1", closed_at_ms=START_MS + 60_000)), side_of("b"), SPAN
    )
    assert sorted(rows_of(comparison)) == [
        ("group", "only in live", "the range's edge", True, 1),
        ("trajectory", "only in live", "b says: nothing", False, 1),
        ("trajectory", "only in live", "the range's edge", True, 1),
    ]
    assert rows_of(compare(side_of("live", last), side_of("b", last), SPAN)) == []


def test_another_choice_of_the_curriculum_has_its_reason() -> None:
    trajectories = [make_trajectory("e1"), make_trajectory("e2")]
    refused = drop_of("curriculum", unit="group", unit_id="g", run="main", stage="curriculum")
    live = side_of("live", *trajectories, group_of("g", "e1", "e2"), admitting("g"))
    replay = side_of("b", *trajectories, group_of("g", "e1", "e2"), refused)
    assert rows_of(compare(live, replay, SPAN)) == [
        ("curriculum", "admitted → curriculum (run main)", "other window or rank", False, 1)
    ]


def test_lost_signal_is_not_a_lost_group() -> None:
    trajectories = [make_trajectory("e1"), make_trajectory("e2")]
    live = side_of("live", *trajectories, group_of("g", "e1", "e2"))
    replay = side_of("b", *trajectories, group_of("g", "e1", "e2", has_signal=False, config_hash="c2"))
    assert rows_of(compare(live, replay, SPAN)) == [
        ("signal", "lost (run main)", "other configuration of the run", False, 1)
    ]


def test_other_settings_are_the_cause_of_other_groups_and_batches() -> None:
    """Of eight attempts live makes two groups of four, and a replay under other settings one of eight."""
    names = [f"e{number}" for number in range(8)]
    trajectories = [make_trajectory(name) for name in names]
    fours = [group_of("a", *names[:4], config_hash="c4"), group_of("b", *names[4:], config_hash="c4")]
    eight = group_of("c", *names, config_hash="c8")
    live = side_of("live", *trajectories, *fours, admitting("a", "b"), batch_of(0, *fours))
    replay = side_of("again", *trajectories, eight, admitting("c"), batch_of(0, eight))
    causes = {row[:3] for row in rows_of(compare(live, replay, SPAN))}
    assert causes == {
        ("group", "only in live", "other configuration of the run: its members are in other groups"),
        ("group", "only in again", "other configuration of the run: its members are in other groups"),
        ("batch", "only in live (run main)", "other configuration of the run"),
        ("batch", "only in again (run main)", "other configuration of the run"),
    }


def test_other_settings_are_the_cause_of_other_scores_and_trajectories() -> None:
    live = side_of("live", make_trajectory("e1"), score_of("e1", 1.0, config_hash="c1"))
    replay = side_of("again", make_trajectory("e1", config_hash="a2"), score_of("e1", 0.5, config_hash="c2"))
    causes = {(row[0], row[2]) for row in rows_of(compare(live, replay, SPAN))}
    assert causes == {("trajectory", "other configuration of assembly"), ("score", "other configuration of scoring")}


def test_a_score_missing_on_one_side_is_named() -> None:
    live = side_of("live", make_trajectory("e1"), score_of("e1", 1.0))
    comparison = compare(live, side_of("b", make_trajectory("e1")), SPAN)
    assert rows_of(comparison) == [("score", "only in live", "not scored yet", False, 1)]


def batch_of(number: int, *groups: Any) -> TrainingBatch:
    return TrainingBatch(batch_hash=f"b{number}", run_id="main", model="agent", number=number, window=0, groups=groups,
                         newest_policy_version=0, cut_at_ms=0)  # fmt: skip


def test_batches_are_compared_by_their_groups_and_not_by_number() -> None:
    trajectories = [make_trajectory(f"e{n}") for n in range(1, 5)]
    g, h = group_of("g", "e1", "e2"), group_of("h", "e3", "e4")
    admitted = admitting("g", "h")
    live = side_of("live", *trajectories, g, h, admitted, batch_of(7, g), batch_of(8, h))
    replay = side_of("b", *trajectories, g, h, admitted, batch_of(0, g), batch_of(1, h))
    comparison = compare(live, replay, SPAN)
    assert (rows_of(comparison), comparison.same["batch"]) == ([], 2)
    both = side_of("b", *trajectories, g, h, admitted, batch_of(0, g, h))
    assert sorted(rows_of(compare(live, both, SPAN))) == [
        ("batch", "only in b (run main)", "its groups are in other batches", False, 1),
        ("batch", "only in live (run main)", "its groups are in other batches", False, 2),
    ]
    none = side_of("b", *trajectories, g, h, drop_of("curriculum", unit="group", unit_id="g", run="main",
                                                  stage="curriculum.main"), admitted)  # fmt: skip
    causes = {row[2] for row in rows_of(compare(live, none, SPAN)) if row[0] == "batch"}
    assert causes == {"of its groups some are curriculum in b", "its groups wait for a step in b"}


def test_batches_of_live_that_lie_outside_the_range_say_nothing() -> None:
    before = batch_of(1, group_of("long ago", "x1", "x2"))
    live = side_of("live", make_trajectory("e1"), before)
    assert rows_of(compare(live, side_of("b", make_trajectory("e1")), SPAN)) == []


def manifest_of(name: str = "b", from_ms: int | None = None, to_ms: int | None = None, **fields: Any) -> ReplayManifest:
    defaults: dict[str, Any] = {"namespace": f"replay-{name}.", "source_namespace": "rollbus.", "state": "complete"}
    defaults |= {"stages": ("assembly",), "ranges": (), "started_at_ms": 0}
    return ReplayManifest(name=name, from_ms=from_ms, to_ms=to_ms, **(defaults | fields))


def test_topics_of_a_replayed_stage_are_not_read_from_live() -> None:
    manifest = manifest_of(stages=("grouping", "group-scoring", "curriculum"), records={"run-log": 7})
    assert made_by(manifest) == {"run-log", "curriculum", "batches", "drops"}
    assert made_by(replace(manifest, state="following", records={})) == made_by(manifest)


def test_later_stages_than_the_last_replayed_one_are_not_compared() -> None:
    """A replay of grouping alone has neither windows nor what their stage drops."""
    grouping = manifest_of(stages=("grouping",))
    whole = replace(grouping, stages=("assembly", "scoring", "grouping", "group-scoring", "curriculum"))
    assert (last_of_all([]), last_of_all([whole]), last_of_all([whole, grouping])) == (
        "curriculum", "curriculum", "grouping",
    )  # fmt: skip
    trajectories = [make_trajectory("e1"), make_trajectory("e2")]
    superseded = drop_of("superseded", unit="group", unit_id="g", run="main", stage="curriculum.main")
    live = side_of("live", *trajectories, group_of("g", "e1", "e2"), superseded)
    comparison = compare(live, side_of("b", *trajectories, group_of("g", "e1", "e2")), SPAN, "grouping")
    assert (rows_of(comparison), comparison.same) == ([], {"trajectory": 2, "group": 1})
    with pytest.raises(ConfigurationError, match="events alone"):
        last_of_all([replace(grouping, stages=("alias",))])


def test_a_shadow_covers_the_time_that_all_partitions_have() -> None:
    assert ticked_span([(0, 10), (0, 20), (0, 90), (1, 30), (1, 70)], 2) == (30, 70)
    assert ticked_span([(0, 10), (0, 20)], 2) == (None, None), "one has not come to a tick"


def test_the_common_time_of_all_replays_is_compared() -> None:
    assert common_span([]) == CommonTime()
    assert common_span([manifest_of("a", 0, 200), manifest_of("b", 100, 300)]) == CommonTime(100, 200)
    assert common_span([manifest_of("a", 0, 100), manifest_of("b", 100, 300)]) == CommonTime(100, 100)


def test_replays_without_common_time_are_not_compared() -> None:
    a, b = manifest_of("a", 0, 100_000), manifest_of("b", 500_000, 700_000)
    ranges = (
        r"'a' goes from the log's beginning to 1970-01-01T00:01:40\.000",
        r"'b' goes from 1970-01-01T00:08:20\.000 to 1970-01-01T00:11:40\.000",
    )
    with pytest.raises(ConfigurationError, match=rf"no common time: {ranges[0]}, {ranges[1]};"):
        common_span([a, b])
    with pytest.raises(ConfigurationError, match=rf"no common time: {ranges[1]}, {ranges[0]};"):
        common_span([b, a])


@pytest.mark.parametrize(("from_ms", "to_ms"), [(None, None), (0, None), (None, 500)])
def test_a_range_without_ticks_is_not_compared(from_ms: int | None, to_ms: int | None) -> None:
    with pytest.raises(ConfigurationError, match=r"no tick .* 'b'"):
        common_span([manifest_of("a", 0, 200), manifest_of("b", from_ms, to_ms)])
