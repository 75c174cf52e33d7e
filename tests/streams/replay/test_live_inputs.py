"""What live learned from the outside world comes again where live had it: before the same tick, once, in its order."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from rollbus.schemas.codec import decode, encode
from rollbus.schemas.records.config import (
    AssemblyConfig,
    BatchingConfig,
    CurriculumConfig,
    GroupingConfig,
    RunConfig,
    ScoringConfig,
)
from rollbus.schemas.records.control import ConfigApplied, Tick
from rollbus.schemas.records.groups import Group, StepOutcome, TrainingBatch
from rollbus.schemas.records.steps import PolicyVersion
from rollbus.schemas.records.trajectories import Location
from rollbus.schemas.topics import BATCHES, RUN_LOG, SCORES
from rollbus.streams.replay.decide.chain import LAST
from rollbus.streams.replay.decide.live_inputs import (
    BEFORE_ALL,
    LiveInputs,
    LiveOutcome,
    LiveRecord,
    Outcomes,
    RecordedInputs,
)
from rollbus.streams.replay.kafka.live_topics import LiveReader, RecordedScores
from rollbus.streams.replay.plan.plan import ReplayPlan, chain_of
from rollbus.streams.replay.plan.range import Bound
from rollbus.streams.replay.plan.stages import pure_stages
from rollbus.streams.stages.curriculum.stage import CurriculumStage
from rollbus.streams.state.stage import PureAsEffects
from tests.builders import make_command, make_config, make_group, make_outcome, make_score, make_tick, make_version
from tests.streams.replay.memory import ListSource, Raw, replayed

GROUPING = GroupingConfig(group_size=2)
RUN = RunConfig(grouping=GROUPING, batching=BatchingConfig(groups_per_step=1))
OTHER_RUN = RUN.model_copy(update={"grouping": GroupingConfig(group_size=4)})


def keep_config(record: ConfigApplied) -> ConfigApplied:
    return record


def collect_inputs(records: Sequence[Any], first_tick: int | None, change: Any = keep_config) -> dict[int, list[Any]]:
    live_inputs = LiveInputs()
    collector = RecordedInputs(RUN_LOG, first_tick=first_tick, change=change, live_inputs=live_inputs)
    for record in records:
        collector.take("main", record)
    collector.end()
    return {
        tick: [live_record.record for live_record in live_records]
        for tick, live_records in live_inputs.before.items()
        if live_records
    }


def test_records_between_two_ticks_are_replayed_before_the_second() -> None:
    config, version, end = make_config("curriculum", RUN, run_id="main"), make_version(1), make_command("end_window")
    log = [make_tick(0), config, make_tick(1), version, end, make_tick(2)]
    assert collect_inputs(log, 0) == {1: [config], 2: [version, end]}


def test_the_last_earlier_record_of_each_kind_holds_in_the_range() -> None:
    configs = [make_config("curriculum", run_config, run_id="main") for run_config in (RUN, OTHER_RUN)]
    of_another_run, old = make_config("curriculum", RUN, run_id="alone"), make_version(1)
    log = [make_tick(0), configs[0], of_another_run, old, make_tick(1), configs[1], make_command("end_window"),
           make_tick(2), make_tick(3)]  # fmt: skip
    assert collect_inputs(log, 3) == {BEFORE_ALL: [of_another_run, old, configs[1]]}
    assert collect_inputs(log, 2)[BEFORE_ALL] == [configs[0], of_another_run, old]
    assert collect_inputs(log, 2)[2] == [configs[1], make_command("end_window")]


def test_a_version_served_again_before_the_range_is_the_newest() -> None:
    """The curriculum measures lag from the version last made or served: what held is told in the order it came to."""
    again = make_version(1, state="serving")
    log = [make_version(1), make_tick(0), make_version(2), make_tick(1), again, make_tick(2), make_tick(3)]
    assert collect_inputs(log, 3)[BEFORE_ALL] == [make_version(2), again]


def test_commands_for_live_alone_are_not_replayed() -> None:
    log = [make_command("pause"), make_command("stop"), make_score(), make_tick(0)]
    assert collect_inputs(log, 0) == {}


def test_a_configuration_that_the_replay_overrides_is_changed_or_left_out() -> None:
    plan = ReplayPlan("again", Bound(), Bound(), chain_of(()), assembly=AssemblyConfig(), scoring=ScoringConfig(),
                      runs=(RUN,), new_grouping=GroupingConfig(group_size=8), new_scoring=ScoringConfig())  # fmt: skip
    given = make_config("grouping", OTHER_RUN, run_id="main")
    log = [given, make_config("scoring", RUN), make_config("assembly", RUN), make_tick(0)]
    grouping, assembly = collect_inputs(log, 0, plan.change)[0]
    assert RunConfig.model_validate_json(grouping.content).grouping.group_size == 8
    assert grouping.config_hash != given.config_hash
    assert assembly is log[2]


def test_outcomes_are_replayed_at_the_next_tick_within_the_range() -> None:
    outcomes = [StepOutcome(run_id="main", step=1, batch_hash=name, batch_number=0, state="completed", base_version=0,
                            policy_version=1) for name in "abcd"]  # fmt: skip
    taken = Outcomes(2)
    log = (outcomes[0], make_tick(1), outcomes[1], make_tick(2), outcomes[2], None, make_tick(3), outcomes[3])
    for offset, record in enumerate(log):
        taken.take(record, offset)
    taken.end()
    assert taken.by_batch == {
        "b": LiveOutcome(2, outcomes[1], 2),
        "c": LiveOutcome(3, outcomes[2], 4),
        "d": LiveOutcome(4, outcomes[3], 7),
    }


# Fed again into a chain


def scores(*groups: str) -> list[Any]:
    return [
        make_score(f"{group}-{n}", float(n), group_hint=group, example_id=group) for group in groups for n in (0, 1)
    ]


def source(*records: Any) -> ListSource:
    return ListSource(0, [Raw(i, getattr(r, "group_hint", "").encode(), encode(r)) for i, r in enumerate(records)], 3)


async def run_log(log: ListSource, live_inputs: LiveInputs, run: RunConfig = RUN) -> tuple[list[Any], list[Any]]:
    """The run-log and the batches of a replay from the scores."""
    plan: Any = ReplayPlan("r", Bound(), Bound(), ("grouping", "curriculum"), None, None, (run,))  # type: ignore[arg-type]
    stages = [*pure_stages(plan, "grouping"), *pure_stages(plan, "curriculum")]
    _, frames = await replayed(stages, [log], partitions=1, live_inputs=live_inputs)
    return [[decode(data) for _, data in frames.get((topic.name, 0), [])] for topic in (RUN_LOG, BATCHES)]  # type: ignore[return-value]


def shape(log: Sequence[Any]) -> list[str]:
    """A run-log at a glance: groups, what was answered, and the numbers of ticks."""
    return [str(r.number) if isinstance(r, Tick) else r.state if isinstance(r, StepOutcome) else type(r).__name__
            for r in log]  # fmt: skip


async def test_a_batch_unknown_to_live_is_answered_at_once_as_skipped() -> None:
    log, batches = await run_log(source(make_tick(0), *scores("a", "b"), make_tick(1)), LiveInputs())
    assert shape(log) == ["0", "Group", "skipped", "Group", "skipped", "1"]
    assert len(batches) == 2


async def known_batches(*records: Any) -> list[TrainingBatch]:
    return (await run_log(source(*records), LiveInputs()))[1]


async def test_a_batch_that_live_also_cut_gets_its_outcome_at_lives_time() -> None:
    records = (make_tick(0), *scores("a", "b"), make_tick(1), make_tick(2), make_tick(3))
    first, _ = await known_batches(*records)
    outcome = make_outcome(first)
    log, batches = await run_log(source(*records), LiveInputs(outcomes={first.batch_hash: LiveOutcome(3, outcome, 9)}))
    assert shape(log) == ["0", "Group", "Group", "1", "2", "completed", "skipped", "3"]
    assert log[5] == outcome
    assert len(batches) == 2  # the second had to wait for it


async def test_two_outcomes_before_one_tick_are_both_replayed_there() -> None:
    records = (make_tick(0), *scores("a", "b"), make_tick(1), make_tick(2))
    batches = await known_batches(*records)
    outcomes = {batch.batch_hash: LiveOutcome(2, make_outcome(batch, step=n), n) for n, batch in enumerate(batches, 1)}
    log, _ = await run_log(source(*records), LiveInputs(outcomes=outcomes))
    assert shape(log) == ["0", "Group", "Group", "1", "completed", "completed", "2"]


async def test_an_outcome_older_than_its_batch_is_replayed_at_once() -> None:
    records = (make_tick(0), make_tick(1), *scores("a"), make_tick(2))
    (batch,) = await known_batches(*records)
    log, _ = await run_log(
        source(*records), LiveInputs(outcomes={batch.batch_hash: LiveOutcome(1, make_outcome(batch), 1)})
    )
    assert shape(log) == ["0", "1", "Group", "completed", "2"]


async def test_a_replayed_record_takes_effect_before_its_tick() -> None:
    live_inputs = LiveInputs()
    live_inputs.before[1] += [LiveRecord(SCORES, "", make_config("grouping", OTHER_RUN, run_id="main"))]
    live_inputs.before[2] += [LiveRecord(RUN_LOG, "agent", make_version(3), LAST + 1)]
    records = (make_tick(0), *scores("a"), make_tick(1), *scores("b"), make_tick(2), make_tick(3))
    log, _ = await run_log(source(*records), live_inputs)
    # its own configuration is in its input or nowhere: a replay tells later stages alone
    assert shape(log) == ["0", "Group", "skipped", "1", "Group", "skipped", "PolicyVersion", "2", "3"]


async def test_groups_of_one_round_come_in_the_order_of_live() -> None:
    records = (make_tick(0), *scores("a", "b", "c"), make_tick(1))
    log, _ = await run_log(source(*records), LiveInputs())
    a, b, c = (record for record in log if isinstance(record, Group))
    live_inputs = LiveInputs()
    for offset, group in ((5, c), (9, a)):
        live_inputs.places.note(("run-log", group.group_id, 0), offset, 0)
    live_inputs.before[1] += [LiveRecord(RUN_LOG, "agent", make_version(3), 7)]
    log, _ = await run_log(source(*records), live_inputs)
    assert [record for record in log if isinstance(record, Group | PolicyVersion)] == [c, make_version(3), a, b]


async def test_earlier_records_in_force_hold_for_the_first_record_of_a_range() -> None:
    live_inputs = LiveInputs()
    live_inputs.before[BEFORE_ALL] += [LiveRecord(RUN_LOG, "agent", make_version(3))]
    log, _ = await run_log(source(*scores("a"), make_tick(0)), live_inputs)
    assert shape(log) == ["PolicyVersion", "Group", "skipped", "0"]


async def test_a_replayed_log_is_read_no_further_than_the_tick_that_is_due() -> None:
    live_inputs = LiveInputs()
    log = [make_tick(0), make_version(1), make_tick(1), make_version(2), make_tick(2)]
    reading = ListSource(0, [Raw(i, b"agent", encode(record)) for i, record in enumerate(log)], 1)
    collector = RecordedInputs(RUN_LOG, first_tick=0, change=keep_config, live_inputs=live_inputs)
    teller = LiveReader(RUN_LOG, [reading], [collector], live_inputs.places, first_tick=0)
    await teller.until(1)
    assert reading.position == 3
    assert [live_record.record for live_record in live_inputs.due(1)] == [make_version(1)]
    assert live_inputs.due(1) == []
    await teller.until(99)
    assert [live_record.record for live_record in live_inputs.due(99)] == [make_version(2)]


async def test_a_command_is_replayed_after_the_early_groups_before_it() -> None:
    live_inputs, end = LiveInputs(), make_command("end_window")
    log = [make_tick(0), make_group("g1"), end, make_tick(1), make_tick(2), make_tick(3)]
    of_round_2 = {1: (("round", b"2"),)}
    raws = [Raw(i, b"main", encode(record), headers=of_round_2.get(i, ())) for i, record in enumerate(log)]
    collector = RecordedInputs(RUN_LOG, first_tick=0, change=keep_config, live_inputs=live_inputs)
    reader = LiveReader(RUN_LOG, [ListSource(0, raws, 1)], [collector], live_inputs.places, first_tick=0)
    await reader.until(99)
    assert live_inputs.due(2) == []
    assert [live.record for live in live_inputs.due(3)] == [end]


async def test_a_replay_ends_a_window_after_the_early_groups_before_its_command() -> None:
    run = RUN.model_copy(update={"curriculum": CurriculumConfig(mode="harness", groups_per_window=9)})
    log = [make_tick(0), make_group("g1"), make_command("end_window"), make_tick(1), make_tick(2), make_tick(3)]
    of_round_2 = {1: (("round", b"2"),)}
    raws = [Raw(i, b"main", encode(record), headers=of_round_2.get(i, ())) for i, record in enumerate(log)]
    _, frames = await replayed(
        [PureAsEffects(CurriculumStage(run))], [ListSource(0, raws, 1)], partitions=1, live_inputs=LiveInputs()
    )
    ((_, data),) = frames["curriculum", 0]
    assert decode(data).seen_group_ids == ("g1",)


async def test_a_score_is_found_by_its_trajectory_and_revision() -> None:
    score_list = [make_score("t1", 0.1), make_score("t2", 0.2), make_score("t1", 0.3, revision=1), make_tick(0)]
    reading = ListSource(0, [Raw(i, b"k", encode(score)) for i, score in enumerate(score_list)], 1)
    recorded_scores = RecordedScores([reading])
    first = await recorded_scores.find("hint", "t1", 0, 0)
    assert first is not None
    assert first.value == 0.1
    assert reading.position == 1  # read no further than what is wanted
    revised, other = await recorded_scores.find("hint", "t1", 1, 0), await recorded_scores.find("hint", "t2", 0, 0)
    assert revised is not None
    assert other is not None
    assert (revised.value, other.value) == (0.3, 0.2)
    assert await recorded_scores.find("hint", "t1", 0, 0) == first  # a second component asks for the same
    assert await recorded_scores.find("hint", "t1", 2, 0) is None
    assert await recorded_scores.find("hint", "t3", 0, 0) is None


class SlowSource(ListSource):
    """Lets others go on before it gives something, as a broker does."""

    async def read(self) -> Sequence[Raw]:
        await asyncio.sleep(0)
        return await super().read()


async def test_two_concurrent_searches_for_a_score_read_no_further_than_it() -> None:
    score_list = [make_score(f"t{number}") for number in range(6)]
    reading = SlowSource(0, [Raw(i, b"k", encode(score)) for i, score in enumerate(score_list)], 1)
    recorded_scores = RecordedScores([reading])
    asked_ids = ("t1", "t1", "t0", "t2")
    assert await asyncio.gather(*(recorded_scores.find("hint", score, 0, 0) for score in asked_ids)) == [
        next(candidate for candidate in score_list if candidate.trajectory_id == score) for score in asked_ids
    ]
    assert reading.position == 3


async def test_a_missing_score_is_searched_only_once_to_the_end_of_the_range() -> None:
    at = [Location(topic="trajectories", partition=0, offset=offset) for offset in (3, 4, 2, 6, 7, 8)]
    revisions = (0, 0, 0, 1, 0, 0)
    score_list = [make_score(f"t{n}", location=at[n], revision=revisions[n]) for n in range(6)]
    reading = ListSource(0, [Raw(i, b"k", encode(score)) for i, score in enumerate(score_list)], 1)
    recorded_scores = RecordedScores([reading], {0: 6})
    assert await recorded_scores.find("hint", "gone", 0, 0) is None
    assert reading.position == 5  # the revision of t3 does not say how far live had come, the score of t4 does
    assert await recorded_scores.find("hint", "gone too", 0, 0) is None
    assert reading.position == 5
    assert await recorded_scores.find("hint", "t2", 0, 0) == score_list[2]


async def test_the_first_of_two_equal_scores_holds() -> None:
    twice = [make_score("t1", 0.1), make_score("t1", 0.9), make_score("t2", 0.2)]
    recorded_scores = RecordedScores([ListSource(0, [Raw(i, b"k", encode(score)) for i, score in enumerate(twice)])])
    score_found = await recorded_scores.find("hint", "t1", 0, 0)
    assert score_found is not None
    assert score_found.value == 0.1


@pytest.mark.parametrize("size", [1, 50])
async def test_an_episode_that_comes_again_after_the_horizon_has_its_own_score(size: int) -> None:
    """Its trajectory has the same id, and its revisions begin again with the first."""
    scores = [
        *(make_score("t1", 0.1, first_seen_ms=10), make_score("t1", 0.2, revision=1, first_seen_ms=10)),
        *(make_score("t1", 0.8, first_seen_ms=90), make_score("t1", 0.9, revision=1, first_seen_ms=90)),
    ]
    recorded_scores = RecordedScores([ListSource(0, [Raw(i, b"k", encode(s)) for i, s in enumerate(scores)], size)])
    found_scores = [
        await recorded_scores.find("hint", "t1", revision, at_ms)
        for revision, at_ms in ((0, 10), (1, 20), (0, 10), (0, 90), (1, 95), (0, 90), (1, 20))
    ]
    assert [score and score.value for score in found_scores] == [0.1, 0.2, 0.1, 0.8, 0.9, 0.8, 0.2]
    assert recorded_scores.ahead == 0


async def test_scores_without_a_later_question_are_not_kept() -> None:
    """A replay that computes asks what live's judge said, once; a shadow would keep every revision for ever."""
    scores = [make_score("t1", 0.1), *(make_score("t1", 0.3, revision=n) for n in range(1, 5)), make_score("t2", 0.2)]
    reading = ListSource(0, [Raw(i, b"k", encode(score)) for i, score in enumerate(scores)], 1)
    recorded_scores = RecordedScores([reading], revisions=False)
    for name in ("t1", "t2"):
        assert await recorded_scores.find("hint", name, 0, 0) is not None
    assert reading.position == len(scores)
    assert recorded_scores.ahead == 0
