"""Windows admit groups by the harness' arithmetic, exactly."""

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from rollbus.schemas.errors import InvalidRecordError
from rollbus.schemas.records.config import BatchingConfig, CurriculumConfig, RunConfig
from rollbus.schemas.records.groups import CurriculumState, Group, TrainingBatch
from rollbus.streams.stages.curriculum.harness import harness
from rollbus.streams.stages.curriculum.modes import Memory, Window
from rollbus.streams.stages.curriculum.stage import CurriculumStage
from tests.builders import make_command, make_config, make_group, make_member
from tests.stepper import Stepper, kinds, reasons


def curriculum(batching: dict[str, Any] | None = None, **config: Any) -> Stepper:
    windows: dict[str, Any] = {"mode": "harness", "groups_per_window": 4}
    batches: dict[str, Any] = {"groups_per_step": 100, "max_waiting_groups": 100, "flush_ms": None}
    run = RunConfig(
        curriculum=CurriculumConfig(**(windows | config)), batching=BatchingConfig(**(batches | (batching or {})))
    )
    stepper = Stepper(CurriculumStage(run))
    stepper.tick()
    return stepper


def only_state(records: list[Any]) -> CurriculumState:
    (state,) = [record for record in records if isinstance(record, CurriculumState)]
    return state


def groups(*means: float, prefix: str = "g", spread: float = 1.0) -> list[Group]:
    """Groups of such mean rewards, named by their place."""
    return [make_group(f"{prefix}{index}", (mean - spread / 2, mean + spread / 2)) for index, mean in enumerate(means)]


def decide(window_groups: list[Group], *, index: int = 0, memory: Memory | None = None, **config: Any) -> Any:
    settings = CurriculumConfig(mode="harness", **config)
    return harness(Window("main", index, window_groups), memory or Memory(settings.initial_percentile), settings)


def test_the_percentile_grows_as_the_harness_grows_it() -> None:
    memory, seen = Memory(0.3), []
    for window in range(25):
        decision = decide(groups(*range(100)), index=window, memory=memory)
        memory = decision.memory
        seen.append((memory.percentile, len(decision.admitted)))
    fourth = 0.8999999999999999, 90  # the float that the harness has
    assert seen == [(0.3, 30)] * 4 + [(0.5, 50)] * 5 + [(0.7, 70)] * 5 + [fourth] * 5 + [(1.0, 100)] * 6
    assert (memory.last_expansion, memory.total_groups) == (19, 100)


def test_groups_are_ranked_by_mean_reward_and_ties_by_key() -> None:
    window_groups = groups(0.5, 1.0, 0.5, 2.0, 0.5)
    assert decide(window_groups, initial_percentile=1.0).admitted == ("g3", "g1", "g0", "g2", "g4")
    assert decide(window_groups, initial_percentile=1.0, sort_ascending=True).admitted == ("g0", "g2", "g4", "g1", "g3")


@given(st.permutations(groups(*(number % 3 for number in range(12)))), st.sampled_from([None, 0.5]))
def test_the_admitted_groups_do_not_depend_on_the_order_of_arrival(
    window_groups: list[Group], share: float | None
) -> None:
    numbered = groups(*(number % 3 for number in range(12)))
    assert decide(window_groups, random_subsample=share) == decide(numbered, random_subsample=share)
    every = [int(name[1:]) for name in decide(window_groups, initial_percentile=1.0).admitted]
    assert every == [2, 5, 8, 11, 1, 4, 7, 10, 0, 3, 6, 9], "numbers count as numbers"


def test_a_difference_below_the_minimum_leaves_and_an_equal_one_stays() -> None:
    flat, edge, wide = groups(1, spread=0.0625)[0], groups(1, 2, spread=0.125)[1], groups(1, 2, 3)[2]
    decision = decide([flat, edge, wide], min_reward_diff=0.125, initial_percentile=1.0)
    assert (decision.no_signal, decision.admitted) == (("g0",), ("g2", "g1"))


@pytest.mark.parametrize("before", ["off", "pools", "advantage_range"])
def test_a_run_that_is_switched_to_the_harness_begins_as_the_harness_does(before: str) -> None:
    """As by a promoted shadow, which began so: windows of another mode have neither set the share nor let it grow."""
    stepper = curriculum(mode=before)
    for window in range(8):
        stepper.feed(*groups(1, 2, 3, 4, prefix=f"{window}-"))
    config = CurriculumConfig(mode="harness", groups_per_window=4, initial_percentile=0.5, expansion_interval=2)
    stepper.feed(make_config("curriculum", RunConfig(curriculum=config), run_id="main"))
    stepper.restore()
    shares = [only_state(stepper.feed(*groups(1, 2, 3, 4, prefix=f"{window}-"))).percentile for window in range(8, 11)]
    assert shares == [0.5, 0.7, 0.7]


def test_a_window_without_remaining_groups_does_not_expand() -> None:
    memory = Memory(0.3)
    decision = decide(groups(1, 2, spread=0.0), index=30, memory=memory)
    assert (decision.memory, decision.admitted) == (memory, ())


def test_total_groups_counts_the_first_window_with_signal() -> None:
    first = decide([*groups(1, 2), *groups(1, prefix="flat", spread=0)])
    assert first.memory.total_groups == 2
    assert decide(groups(1, 2, 3), index=1, memory=first.memory).memory.total_groups == 2


def test_at_least_one_group_is_admitted_and_counts_are_rounded_up() -> None:
    assert len(decide(groups(1, 2), initial_percentile=0.01).admitted) == 1
    assert len(decide(groups(*range(11))).admitted) == 4


def test_a_share_that_is_a_whole_number_of_groups_admits_so_many() -> None:
    assert len(decide(groups(*range(25)), initial_percentile=0.28).admitted) == 7
    assert len(decide(groups(*range(25)), initial_percentile=1.0, random_subsample=0.28).admitted) == 7
    assert len(decide(groups(*range(10)), memory=Memory(0.1 + 0.1 + 0.1)).admitted) == 3
    many = make_group("g", tuple(range(25)))
    assert len(decide([many], random_subsample=0.28).members_left_out["g"]) == 18


def test_a_single_group_is_only_subsampled_by_members() -> None:
    (single,) = groups(1, spread=0)
    assert decide([single]).admitted == ("g0",)
    many = make_group("g", tuple(range(8)))
    decision = decide([many], random_subsample=0.3)
    assert decision.admitted == ("g",)
    assert len(decision.members_left_out["g"]) == 8 - math.ceil(8 * 0.3)


def test_a_subsample_of_groups_keeps_their_rank_and_repeats() -> None:
    window_groups = groups(*range(10))
    decisions = {decide(window_groups, initial_percentile=1.0, random_subsample=0.35).admitted for _ in range(3)}
    (admitted,) = decisions
    assert len(admitted) == 4
    assert sorted(admitted, key=lambda name: -int(name[1:])) == list(admitted)
    assert decide(window_groups, initial_percentile=1.0, random_subsample=0.35, seed=1).admitted != admitted


@given(st.lists(st.tuples(st.integers(0, 4), st.sampled_from([0.0, 0.125, 1.0])), min_size=2, max_size=20))
def test_a_window_agrees_with_the_harness_written_down_naively(shape: list[tuple[int, float]]) -> None:
    window_groups = [make_group(f"g{i}", (mean - width / 2, mean + width / 2)) for i, (mean, width) in enumerate(shape)]
    percentile, last, window = 0.3, -1, 17
    groups_with_signal = [group for group in window_groups if group.reward_max - group.reward_min >= 0.1]
    expected: list[str] = []
    if groups_with_signal:
        groups_with_signal.sort(key=lambda group: group.reward_mean, reverse=True)
        if window - last >= 5:
            percentile += 0.2  # once, however many expansions were missed
        expected = [
            group.group_id for group in groups_with_signal[: max(1, math.ceil(len(groups_with_signal) * percentile))]
        ]
    decision = decide(window_groups, index=window)
    assert list(decision.admitted) == expected
    assert len(decision.admitted) + len(decision.rejected) + len(decision.no_signal) == len(window_groups)


def test_a_window_closes_by_count_and_every_group_has_a_fate() -> None:
    stepper = curriculum()
    outputs = stepper.feed(*groups(1, 2, 3, spread=1.0), *groups(0, prefix="flat", spread=0.0))
    state = only_state(outputs)
    assert (state.window, state.percentile, state.reward_mean) == (0, 0.3, 1.5)
    assert state.seen_group_ids == ("g0", "g1", "g2", "flat0")
    assert (state.admitted_group_ids, state.rejected_group_ids) == (("g2",), ("g1", "g0"))
    assert sorted(reasons(outputs)) == ["curriculum", "curriculum", "no_signal"]


def test_a_window_closes_by_span_counted_from_its_first_group() -> None:
    stepper = curriculum(window_span_ms=60_000)
    stepper.tick(600)
    stepper.feed(groups(1)[0])
    assert stepper.tick(59) == []
    assert only_state(stepper.tick(1)).seen_group_ids == ("g0",)
    assert stepper.tick(600) == []


def test_a_window_ends_by_command_even_an_empty_one() -> None:
    stepper = curriculum()
    assert only_state(stepper.feed(make_command("end_window", key="a"))).window == 0
    stepper.feed(*groups(1, 2))
    assert only_state(stepper.feed(make_command("end_window", key="b"))).window == 1
    assert stepper.feed(make_command("end_window", key="b")) == []


def test_the_memory_of_a_window_survives_a_restart() -> None:
    stepper = curriculum(groups_per_window=2)
    for window in range(5):
        stepper.restore()
        state = only_state(stepper.feed(*groups(1, 2, prefix=f"w{window}-")))
    assert (state.window, state.percentile, state.last_expansion_window, state.total_groups) == (4, 0.5, 4, 2)


def test_off_admits_groups_with_signal_at_once_and_still_reports_windows() -> None:
    stepper = curriculum(batching={"groups_per_step": 1}, mode="off", groups_per_window=3)
    first = stepper.feed(make_group("g0"))
    assert kinds(first) == ["TrainingBatch"]
    outputs = stepper.feed(make_group("flat", (1.0, 1.0)), make_group("g1"))
    assert reasons(outputs) == ["no_signal"]
    state = only_state(outputs)
    assert (state.seen_group_ids, state.admitted_group_ids) == (("g0", "flat", "g1"), ("g0", "g1"))


def test_a_subsampled_single_group_is_compared_again_among_the_kept_members() -> None:
    stepper = curriculum(batching={"groups_per_step": 1}, random_subsample=0.5, groups_per_window=1)
    outputs = stepper.feed(make_group("g", (0.0, 1.0, 2.0, 3.0)))
    (batch,) = [record for record in outputs if isinstance(record, TrainingBatch)]
    members = batch.groups[0].members
    assert sum(member.advantage for member in members) == pytest.approx(0)
    (drop,) = [record for record in outputs if kinds([record]) == ["Drop"]]
    dropped = set(drop.trajectory_ids)
    assert dropped | {member.trajectory_id for member in members} == {f"g-{index}" for index in range(4)}


def test_a_subsampled_group_below_the_runs_tolerance_is_dropped() -> None:
    run = RunConfig(
        curriculum=CurriculumConfig(mode="harness", groups_per_window=1, random_subsample=0.5),
        batching=BatchingConfig(groups_per_step=1),
    )
    stepper = Stepper(CurriculumStage(run))
    outputs = stepper.feed(make_group("g1", (0.25, 0.0, 0.0, 0.0)))
    assert reasons(outputs) == ["curriculum", "no_signal"]
    assert not [record for record in outputs if isinstance(record, TrainingBatch)]


@pytest.mark.parametrize("rewards", [(1e200, 0.0, 0.5, 1.0), (math.inf, 0.0, 0.5, 1.0)])
def test_a_group_with_numbers_too_large_is_refused_before_anything_changes(rewards: tuple[float, ...]) -> None:
    stepper = curriculum(groups_per_window=1, random_subsample=0.9)
    members = tuple(make_member(f"t{index}", reward) for index, reward in enumerate(rewards))
    poisoned = make_group("g1", members=members, reward_mean=rewards[0])
    with pytest.raises(InvalidRecordError, match="g1"):
        stepper.feed(poisoned)
    assert only_state(stepper.feed(make_group("g1"))).admitted_group_ids == ("g1",)


def test_records_of_other_runs_change_nothing() -> None:
    stepper = curriculum()
    assert stepper.feed(make_group("g", run_id="other"), make_command("end_window", run_id="other")) == []


def test_a_single_attempt_is_ranked_by_distance_to_the_expected_reward() -> None:
    near = make_group("near", (1.0,), closed_by="single", members=(make_member("a", advantage=0.05),))
    far = make_group("far", (1.0,), closed_by="single", members=(make_member("b", advantage=-0.5),), has_signal=True)
    decision = decide([near, far])
    assert (decision.no_signal, decision.admitted) == (("near",), ("far",))


def test_a_mode_can_be_switched_while_groups_wait_in_the_window() -> None:
    stepper = curriculum()
    stepper.feed(*groups(1, 2))
    stepper.feed(make_config("curriculum", RunConfig(), run_id="main"))
    state = only_state(stepper.feed(make_command("end_window")))
    assert (state.mode, state.admitted_group_ids) == ("off", ("g0", "g1"))


def test_pools_admit_a_share_of_each_difficulty() -> None:
    window_groups = groups(*[0.0] * 10, *[0.5] * 10, *[1.0] * 10)
    stepper = curriculum(mode="pools", groups_per_window=30)
    state = only_state(stepper.feed(*window_groups))
    admitted = [int(name[1:]) for name in state.admitted_group_ids]
    assert [sum(low <= number < low + 10 for number in admitted) for low in (0, 10, 20)] == [2, 10, 2]
    assert len(state.rejected_group_ids) == 16


@pytest.mark.parametrize(
    "shares", [{"mode": "pools", "hard_share": 0.28}, {"mode": "surprise", "surprise_share": 0.28}]
)
def test_a_share_that_is_a_whole_number_admits_so_many_in_any_mode(shares: dict[str, Any]) -> None:
    state = only_state(curriculum(groups_per_window=25, **shares).feed(*groups(*[0.0] * 25)))
    assert (len(state.admitted_group_ids), len(state.rejected_group_ids)) == (7, 18)


@pytest.mark.parametrize("mode", ["harness", "pools"])
def test_rewards_that_differ_by_the_least_difference_have_signal(mode: str) -> None:
    pairs = [(0.8, 0.9), (0.2, 0.3), (0.2, 0.29)]
    shares: dict[str, Any] = {"initial_percentile": 1.0, "easy_share": 1.0, "hard_share": 1.0}
    stepper = curriculum(mode=mode, groups_per_window=3, min_reward_diff=0.1, **shares)
    state = only_state(stepper.feed(*(make_group(f"g{place}", pair) for place, pair in enumerate(pairs))))
    assert set(state.admitted_group_ids) == {"g0", "g1"}


def test_bounds_in_the_wrong_order_are_refused() -> None:
    with pytest.raises(ValidationError, match=r"hard_below 0\.8 is above easy_above 0\.2"):
        CurriculumConfig(hard_below=0.8, easy_above=0.2)


def test_a_pool_is_chosen_by_the_group_before_and_remembered_over_a_restart() -> None:
    stepper = curriculum(mode="pools", groups_per_window=1, hard_share=0.0)
    easy_before = make_group("a", (0.5, 1.0), group_key="x")
    assert only_state(stepper.feed(easy_before)).mode_state == '{"x":0.75}'
    stepper.restore()
    hard_now = make_group("b", (0.0, 0.25), group_key="x")
    assert only_state(stepper.feed(hard_now)).admitted_group_ids == ("b",)
    assert only_state(stepper.feed(make_group("c", (0.5, 1.0), group_key="x"))).rejected_group_ids == ("c",)


def test_the_advantage_range_admits_what_reaches_beyond_it() -> None:
    stepper = curriculum(mode="advantage_range", least_advantage=0.3, groups_per_window=3)
    window_groups = [*groups(1, spread=1.0), *groups(1, prefix="s", spread=0.5), make_group("f", (1, 1))]
    state = only_state(stepper.feed(*window_groups))
    assert (state.admitted_group_ids, state.rejected_group_ids) == (("g0",), ("s0",))


def test_surprise_admits_the_furthest_from_the_expectation_first() -> None:
    singles = [
        make_group(name, (1.0,), closed_by="single", members=(make_member(name, **fields),), has_signal=True)
        for name, fields in (
            ("near", {"advantage": 0.1}),
            ("far", {"advantage": -0.9}),
            ("turned", {"advantage": 0.0, "turn_advantages": {"a": 0.5, "b": -0.5}}),
            ("next", {"advantage": 0.2}),
        )
    ]
    stepper = curriculum(mode="surprise", groups_per_window=5)
    state = only_state(stepper.feed(*singles, make_group("flat", (1.0, 1.0))))
    assert (state.admitted_group_ids, state.rejected_group_ids) == (("far", "turned"), ("next", "near"))
