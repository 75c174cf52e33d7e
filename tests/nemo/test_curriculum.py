"""The curriculum of a collection against cases worked out by hand: ties, filters, subsample, a single group.

`tests/streams/stages/test_curriculum.py` holds the arithmetic, and `test_side_by_side.py` the toolkit's own trainer.
"""

from collections.abc import Sequence
from typing import Any

import pytest
from nat.data_models.finetuning import (
    CurriculumLearningConfig,
    EpisodeItem,
    EpisodeItemRole,
    Trajectory,
    TrajectoryCollection,
)

from rollbus.nemo.curriculum import choose
from rollbus.streams.stages.curriculum.modes import Memory


def collection(*groups: Sequence[float]) -> TrajectoryCollection:
    question = [EpisodeItem(role=EpisodeItemRole.USER, content="?")]
    trajectories = [[Trajectory(episode=question, reward=reward) for reward in group] for group in groups]
    return TrajectoryCollection(trajectories=trajectories, run_id="r")


def config(**values: Any) -> CurriculumLearningConfig:
    return CurriculumLearningConfig(enabled=True, **values)


def start(curriculum: CurriculumLearningConfig) -> Memory:
    return Memory(curriculum.initial_percentile)


TEN = tuple((n / 10, n / 10 + 0.5) for n in range(10))
"""Ten groups whose means rise with their position."""


@pytest.mark.parametrize(
    ("what", "groups", "values", "included_groups"),
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
    what: str, groups: list[tuple[float, ...]], values: dict[str, Any], included_groups: tuple[int, ...]
) -> None:
    curriculum = config(**values)
    assert choose(collection(*groups), 0, start(curriculum), curriculum).included == included_groups, what


def test_a_subsample_is_repeatable_and_another_seed_gives_another() -> None:
    def included_groups(seed: int) -> tuple[int, ...]:
        curriculum = config(initial_percentile=1, random_subsample=0.3)
        return choose(collection(*TEN), 0, start(curriculum), curriculum, seed).included

    assert included_groups(1) == included_groups(1)
    assert len({included_groups(seed) for seed in range(5)}) > 1


def test_a_single_group_is_subsampled_by_members() -> None:
    curriculum = config(random_subsample=0.5)
    chosen = choose(collection((0, 1, 2, 3, 4)), 0, start(curriculum), curriculum)
    assert [len(group) for group in chosen.collection.trajectories] == [3]


def test_a_disabled_curriculum_lets_everything_through() -> None:
    curriculum = CurriculumLearningConfig()
    chosen = choose(collection((1, 1), (0, 1), ()), 0, start(curriculum), curriculum)
    assert chosen.included == (0, 1)
    assert chosen.memory == start(curriculum)
