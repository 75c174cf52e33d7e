"""The curriculum on a collection, by the arithmetic of `streams/curriculum_harness`: for adapters off the bus."""

from collections.abc import Iterator
from dataclasses import dataclass
from statistics import fmean

from nat.data_models.finetuning import CurriculumLearningConfig, Trajectory, TrajectoryCollection

from rollbus.nemo.bus.publish_trajectories import count, total
from rollbus.schemas.records.config import CurriculumConfig
from rollbus.schemas.records.groups import Group, GroupMember
from rollbus.schemas.records.trajectories import Location
from rollbus.streams.stages.curriculum.harness import harness
from rollbus.streams.stages.curriculum.modes import Memory, Window, is_less
from rollbus.streams.stages.grouping.advantages import statistics


@dataclass(frozen=True, slots=True)
class CurriculumChoice:
    """What a curriculum lets through."""

    collection: TrajectoryCollection
    memory: Memory
    included: tuple[int, ...]
    """Positions of the chosen groups in the collection, in rank order."""


def curriculum_config(config: CurriculumLearningConfig, seed: int = 0) -> CurriculumConfig:
    """Return the stream's configuration; a disabled curriculum lets everything through, an epoch at a time."""
    shared = {"mode": "harness", "groups_per_window": NO_LIMIT, "seed": seed}
    if not config.enabled:
        return CurriculumConfig.model_validate({**shared, "initial_percentile": 1.0, "min_reward_diff": 0.0})
    chosen_fields = config.model_dump(exclude={"enabled"})
    return CurriculumConfig.model_validate({**shared, **chosen_fields})


NO_LIMIT = 1_000_000
"""Groups of an epoch: its window is closed by command, never by count."""


def choose(
    collection: TrajectoryCollection, epoch: int, memory: Memory, config: CurriculumLearningConfig, seed: int = 0
) -> CurriculumChoice:
    """Return the groups of an epoch to train on."""
    positions = [index for index, group in enumerate(collection.trajectories) if group]
    if not config.enabled:
        return CurriculumChoice(_of(collection, positions), memory, tuple(positions))
    groups = [_group(index, collection.trajectories[index], collection.run_id) for index in positions]
    if not groups:
        return CurriculumChoice(_of(collection, ()), memory, ())
    decision = harness(Window(collection.run_id, epoch, groups), memory, curriculum_config(config, seed))
    included = tuple(int(group_id) for group_id in decision.admitted)
    admitted_groups = [
        [
            trajectory
            for position, trajectory in enumerate(collection.trajectories[index])
            if _member_id(index, position) not in decision.members_left_out.get(str(index), ())
        ]
        for index in included
    ]
    return CurriculumChoice(
        TrajectoryCollection(trajectories=admitted_groups, run_id=collection.run_id), decision.memory, included
    )


def describe_choice(
    collection: TrajectoryCollection,
    choice: CurriculumChoice,
    before: Memory,
    epoch: int,
    config: CurriculumLearningConfig,
) -> Iterator[str]:
    """Yield what a curriculum did with an epoch's groups, in the toolkit's words and with its epochs, from 0."""
    rewards = {index: [total(member) for member in group] for index, group in enumerate(collection.trajectories)}
    with_signal = [r for r in rewards.values() if r and not is_less(max(r) - min(r), config.min_reward_diff)]
    if not choice.included:
        yield "No trajectory groups with sufficient variance found"
        return
    percentile = choice.memory.percentile
    if percentile > before.percentile:
        old, new = f"{before.percentile:.1%}", f"{percentile:.1%}"
        yield f"Expanding curriculum at epoch {epoch}: {old} -> {new} of trajectory groups"
    means = sorted(fmean(rewards[index]) for index in choice.included)
    yield (
        f"Curriculum learning at epoch {epoch}: Using {len(means)}/{len(with_signal)} groups ({percentile:.1%}), "
        f"{count(choice.collection)} total trajectories. Avg reward range: [{means[0]:.4f}, {means[-1]:.4f}]"
    )


def _of(collection: TrajectoryCollection, positions: "list[int] | tuple[int, ...]") -> TrajectoryCollection:
    groups = [collection.trajectories[index] for index in positions]
    return TrajectoryCollection(trajectories=groups, run_id=collection.run_id)


def _member_id(index: int, position: int) -> str:
    return f"{index}:{position}"


def _group(index: int, trajectories: list[Trajectory], run_id: str) -> Group:
    rewards = [total(trajectory) for trajectory in trajectories]
    reward_statistics = statistics(rewards)
    members = tuple(
        GroupMember(
            trajectory_id=_member_id(index, position),
            episode_id="",
            location=Location(topic="", partition=0, offset=0),
            reward=reward,
            advantage=0.0,
            min_policy_version=0,
            max_policy_version=0,
        )
        for position, reward in enumerate(rewards)
    )
    return Group(
        group_id=str(index),
        run_id=run_id,
        group_key=str(index),
        model="",
        task="",
        strategy="by_example",
        advantage_kind="mean_std",
        members=members,
        reward_mean=reward_statistics.mean,
        reward_std=reward_statistics.std,
        reward_min=reward_statistics.low,
        reward_max=reward_statistics.high,
        has_signal=reward_statistics.spread() > 0,
        closed_by="full",
        closed_at_ms=0,
    )
