"""Groups, curriculum windows and batches of a run → their tables."""

from rollbus.consumers.clickhouse.origin import Origin, Rows, time_ms
from rollbus.schemas.groups import CurriculumState, Group, TrainingBatch


def group(record: Group, origin: Origin) -> Rows:
    """Return the group and its members."""
    row = origin.row(
        run_id=record.run_id,
        group_id=record.group_id,
        group_key=record.group_key,
        model=record.model,
        task=record.task,
        example_id=record.example_id,
        strategy=record.strategy,
        advantage_kind=record.advantage_kind,
        size=len(record.members),
        reward_mean=record.reward_mean,
        reward_std=record.reward_std,
        reward_min=record.reward_min,
        reward_max=record.reward_max,
        has_signal=record.has_signal,
        closed_by=record.closed_by,
        closed_at=time_ms(record.closed_at_ms),
        reward_version=record.reward_version,
        config_hash=record.config_hash,
    )
    return [("groups", row), *_members(record, origin)]


def _members(record: Group, origin: Origin) -> Rows:
    return [
        (
            "group_members",
            origin.row(
                run_id=record.run_id,
                group_id=record.group_id,
                trajectory_id=member.trajectory_id,
                episode_id=member.episode_id,
                location_topic=member.location.topic,
                location_partition=member.location.partition,
                location_offset=member.location.offset,
                reward=member.reward,
                advantage=member.advantage,
                components=dict(member.components),
                min_policy_version=member.min_policy_version,
                max_policy_version=member.max_policy_version,
                tokens=member.tokens,
                sampled_tokens=member.sampled_tokens,
                score_revision=member.score_revision,
                resampled=member.resampled,
                closed_at=time_ms(record.closed_at_ms),
            ),
        )
        for member in record.members
    ]


def curriculum_state(record: CurriculumState, origin: Origin) -> Rows:
    """Return the window and what it admitted."""
    row = origin.row(
        run_id=record.run_id,
        window=record.window,
        mode=record.mode,
        percentile=record.percentile,
        last_expansion_window=record.last_expansion_window,
        total_groups=record.total_groups,
        seen_group_ids=list(record.seen_group_ids),
        admitted_group_ids=list(record.admitted_group_ids),
        rejected_group_ids=list(record.rejected_group_ids),
        reward_mean=record.reward_mean,
        closed_at=time_ms(record.closed_at_ms),
        mode_state=record.mode_state,
        config_hash=record.config_hash,
    )
    return [("curriculum_states", row)]


def training_batch(record: TrainingBatch, origin: Origin) -> Rows:
    """Return the batch and the order of its groups; the groups themselves came over the run's log."""
    row = origin.row(
        run_id=record.run_id,
        batch_hash=record.batch_hash,
        model=record.model,
        number=record.number,
        window=record.window,
        groups=len(record.groups),
        trajectories=sum(len(group.members) for group in record.groups),
        newest_policy_version=record.newest_policy_version,
        cut_at=time_ms(record.cut_at_ms),
        config_hash=record.config_hash,
    )
    members = [
        (
            "batch_groups",
            origin.row(
                run_id=record.run_id,
                batch_hash=record.batch_hash,
                number=record.number,
                position=position,
                group_id=group.group_id,
            ),
        )
        for position, group in enumerate(record.groups)
    ]
    return [("batches", row), *members]
