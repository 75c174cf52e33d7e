"""Drops, dead letters, producers' counters, configurations, commands and replays → their tables."""

from rollbus.consumers.clickhouse.origin import Origin, Rows, time_ms
from rollbus.schemas.control import ConfigApplied, RunCommand
from rollbus.schemas.drops import DeadLetter, Drop, ProducerReport
from rollbus.schemas.replays import ReplayManifest, ReplayRange


def drop(record: Drop, origin: Origin) -> Rows:
    """Return the drop, and one row for each trajectory whose fate it decides."""
    trajectory_ids = _decided(record)
    row = origin.row(
        run_id=record.run_id or "",
        unit=record.unit,
        unit_id=record.unit_id,
        reason=record.reason,
        stage=record.stage,
        trajectories=len(trajectory_ids),
        detail=record.detail,
        dropped_at=time_ms(record.dropped_at_ms),
    )
    fates = [
        (
            "drop_trajectories",
            origin.row(
                run_id=record.run_id or "",
                trajectory_id=trajectory_id,
                reason=record.reason,
                stage=record.stage,
                unit=record.unit,
                unit_id=record.unit_id,
                dropped_at=time_ms(record.dropped_at_ms),
            ),
        )
        for trajectory_id in trajectory_ids
    ]
    return [("drops", row), *fates]


def _decided(record: Drop) -> tuple[str, ...]:
    """Return the trajectories that the drop names; a dropped trajectory is its own."""
    if record.unit == "trajectory" and not record.trajectory_ids:
        return (record.unit_id,)
    return record.trajectory_ids


def dead_letter(record: DeadLetter, origin: Origin) -> Rows:
    """Return bytes that could not be processed, under their origin."""
    row = origin.row(
        stage=record.stage,
        topic=record.topic,
        partition=record.partition,
        offset=record.offset,
        timestamp=time_ms(record.timestamp_ms),
        key=record.key,
        value=record.value,
        error_class=record.error_class,
        message=record.message,
        attempt=record.attempt,
        app_version=record.app_version,
    )
    return [("dead_letters", row)]


def producer_report(record: ProducerReport, origin: Origin) -> Rows:
    """Return a producer's counters at one time."""
    row = origin.row(
        producer=record.producer,
        writer_id=record.writer_id,
        counters=dict(record.counters),
        reported_at=time_ms(record.reported_at_ms),
    )
    return [("producer_reports", row)]


def config_applied(record: ConfigApplied, origin: Origin) -> Rows:
    """Return a configuration and where it took effect."""
    row = origin.row(
        stage=record.stage, run_id=record.run_id or "", config_hash=record.config_hash, content=record.content
    )
    return [("config_applied", row)]


def run_command(record: RunCommand, origin: Origin) -> Rows:
    """Return an operator's command."""
    row = origin.row(run_id=record.run_id, command=record.command, command_id=record.command_id, comment=record.comment)
    return [("run_commands", row)]


def replay_manifest(record: ReplayManifest, origin: Origin) -> Rows:
    """Return a replay as far as it is; a later manifest of the same name takes its place."""
    row = origin.row(
        name=record.name,
        replay_namespace=record.namespace,
        source_namespace=record.source_namespace,
        state=record.state,
        stages=list(record.stages),
        ranges=_ranges(record.ranges),
        missing=_ranges(record.missing),
        from_at=None if record.from_ms is None else time_ms(record.from_ms),
        to_at=None if record.to_ms is None else time_ms(record.to_ms),
        rewards=record.rewards,
        scores=record.scores,
        overrides={f"{one.stage}.{one.run_id}" if one.run_id else one.stage: one.content for one in record.overrides},
        code_hash=record.code_hash,
        version=record.version,
        exclusions=record.exclusions,
        digests={one.stage: one.digest for one in record.digests},
        records=dict(record.records),
        dead_letters=sum(one.dead_letters for one in record.digests),
        started_at=time_ms(record.started_at_ms),
        finished_at=None if record.finished_at_ms is None else time_ms(record.finished_at_ms),
    )
    return [("replays", row)]


def _ranges(ranges: tuple[ReplayRange, ...]) -> list[tuple[str, int, int, int]]:
    return [(one.topic, one.partition, one.from_offset, one.to_offset) for one in ranges]
