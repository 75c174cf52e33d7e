"""The curriculum against cases worked out by hand: share by epoch, ties, filters, subsample, a single group."""

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nat.data_models.finetuning import (
    CurriculumLearningConfig,
    EpisodeItem,
    EpisodeItemRole,
    Trajectory,
    TrajectoryCollection,
)

from rollbus.harness.curriculum import choose
from rollbus.streams.stages.curriculum.modes import Memory


def collection(*groups: tuple[float, ...]) -> TrajectoryCollection:
    said = [EpisodeItem(role=EpisodeItemRole.USER, content="?")]
    made = [[Trajectory(episode=said, reward=reward) for reward in group] for group in groups]
    return TrajectoryCollection(trajectories=made, run_id="r")


def config(**values: Any) -> CurriculumLearningConfig:
    return CurriculumLearningConfig(enabled=True, **values)


def start(curriculum: CurriculumLearningConfig) -> Memory:
    return Memory(curriculum.initial_percentile)


TEN = tuple((n / 10, n / 10 + 0.5) for n in range(10))
"""Ten groups whose means rise with their position."""


@pytest.mark.parametrize(
    ("epoch", "percentile", "kept"),
    [
        # 0.3 until epoch 3: the last expansion counts as epoch −1, so the first is due at epoch 4; then every fifth.
        (0, 0.3, 3),
        (3, 0.3, 3),
        (4, 0.5, 5),
        (8, 0.5, 5),
        (9, 0.7, 7),
        (13, 0.7, 7),
        (14, 0.9, 9),
        (18, 0.9, 9),
        (19, 1.0, 10),
        (40, 1.0, 10),
    ],
)
def test_the_share_grows_as_worked_out_by_hand(epoch: int, percentile: float, kept: int) -> None:
    curriculum = config()
    memory = start(curriculum)
    for number in range(epoch + 1):
        chosen = choose(collection(*TEN), number, memory, curriculum)
        memory = chosen.memory
    assert memory.percentile == pytest.approx(percentile)
    assert len(chosen.included) == kept
    assert chosen.included == tuple(range(9, 9 - kept, -1)), "highest mean first"


@pytest.mark.parametrize(
    ("what", "groups", "values", "included"),
    [
        ("easy first", [(0, 1), (1, 2), (2, 3)], {"initial_percentile": 0.5}, (2, 1)),
        ("hard first", [(0, 1), (1, 2), (2, 3)], {"initial_percentile": 0.5, "sort_ascending": True}, (0, 1)),
        ("ties keep their order", [(0, 1), (1, 0), (0.25, 0.75)], {"initial_percentile": 0.4}, (0, 1)),
        ("ties keep it ascending too", [(1, 0), (0, 1)], {"initial_percentile": 0.5, "sort_ascending": True}, (0,)),
        ("a spread of exactly the limit stays", [(0, 0.25), (0, 0.125)], {"min_reward_diff": 0.25}, (0,)),
        (
            "flat groups leave before the share is taken",
            [(1, 1), (2, 2), (0, 1), (0, 2)],
            {"initial_percentile": 1},
            (3, 2),
        ),
        ("at least one group", [(0, 1), (1, 2), (2, 3)], {"initial_percentile": 0.01}, (2,)),
        ("the share is rounded up", [(0, 1), (1, 2), (2, 3), (3, 4)], {"initial_percentile": 0.3}, (3, 2)),
        ("nothing has a spread", [(1, 1), (0, 0)], {}, ()),
        ("a single group is not filtered", [(1, 1)], {"initial_percentile": 0.1}, (0,)),
        ("an empty group does not count", [(), (1, 1)], {}, (1,)),
        ("no groups", [], {}, ()),
    ],
)
def test_groups_are_chosen_as_worked_out_by_hand(
    what: str, groups: list[tuple[float, ...]], values: dict[str, Any], included: tuple[int, ...]
) -> None:
    curriculum = config(**values)
    assert choose(collection(*groups), 0, start(curriculum), curriculum).included == included, what


def test_an_epoch_without_signal_does_not_expand() -> None:
    curriculum = config(expansion_interval=1)
    memory = choose(collection((1, 1), (0, 0)), 0, start(curriculum), curriculum).memory
    assert (memory.percentile, memory.last_expansion) == (0.3, -1)
    memory = choose(collection(*TEN), 1, memory, curriculum).memory
    assert (memory.percentile, memory.last_expansion, memory.total_groups) == (0.5, 1, 10)


def test_at_most_one_increment_an_epoch_however_many_were_missed() -> None:
    curriculum = config()
    assert choose(collection(*TEN), 30, start(curriculum), curriculum).memory.percentile == 0.5


def test_the_number_of_groups_is_remembered_from_the_first_epoch_after_its_filter() -> None:
    curriculum = config()
    memory = choose(collection(*TEN, (1, 1)), 0, start(curriculum), curriculum).memory
    assert choose(collection(*TEN[:4]), 1, memory, curriculum).memory.total_groups == 10


def test_a_subsample_keeps_its_share_of_groups_rounded_up_and_in_rank_order() -> None:
    curriculum = config(initial_percentile=1, random_subsample=0.25)
    chosen = choose(collection(*TEN), 0, start(curriculum), curriculum)
    assert len(chosen.included) == 3
    assert list(chosen.included) == sorted(chosen.included, reverse=True)


def test_a_subsample_is_repeatable_and_another_seed_gives_another() -> None:
    def included(seed: int) -> tuple[int, ...]:
        curriculum = config(initial_percentile=1, random_subsample=0.3)
        return choose(collection(*TEN), 0, start(curriculum), curriculum, seed).included

    assert included(1) == included(1)
    assert len({included(seed) for seed in range(5)}) > 1


def test_a_single_group_is_subsampled_inside() -> None:
    curriculum = config(random_subsample=0.5)
    chosen = choose(collection((0, 1, 2, 3, 4)), 0, start(curriculum), curriculum)
    assert [len(group) for group in chosen.collection.trajectories] == [3]


def test_a_disabled_curriculum_lets_everything_through() -> None:
    curriculum = CurriculumLearningConfig()
    chosen = choose(collection((1, 1), (0, 1), ()), 0, start(curriculum), curriculum)
    assert chosen.included == (0, 1)
    assert chosen.memory == start(curriculum)


@given(
    groups=st.lists(st.lists(st.floats(-2, 2, width=16), min_size=1, max_size=4), min_size=2, max_size=12),
    share=st.floats(0.05, 1),
)
def test_what_is_chosen_never_has_a_lower_mean_than_what_is_not(groups: list[list[float]], share: float) -> None:
    curriculum = config(initial_percentile=share)
    chosen = choose(collection(*map(tuple, groups)), 0, start(curriculum), curriculum)
    spread = [index for index, group in enumerate(groups) if max(group) - min(group) >= 0.1]
    assert set(chosen.included) <= set(spread)
    assert bool(chosen.included) == bool(spread)
    left = [sum(groups[n]) / len(groups[n]) for n in spread if n not in chosen.included]
    kept = [sum(groups[n]) / len(groups[n]) for n in chosen.included]
    assert not left or not kept or max(left) <= min(kept) + 1e-9


def test_the_order_of_members_changes_nothing() -> None:
    curriculum = config()
    shuffled = [tuple(random.Random(n).sample(group, len(group))) for n, group in enumerate(TEN)]
    first = choose(collection(*TEN), 0, start(curriculum), curriculum).included
    assert choose(collection(*shuffled), 0, start(curriculum), curriculum).included == first
