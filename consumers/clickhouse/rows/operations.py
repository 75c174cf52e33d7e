"""Drops, dead letters, producers' counters, configurations, commands and replays → their tables."""

from rollbus.consumers.clickhouse.store.fills import Fill, Time, columns_of
from rollbus.consumers.clickhouse.store.origin import Origin, Rows, optional_time_ms
from rollbus.schemas.records.control import ConfigApplied, RunCommand
from rollbus.schemas.records.data_sets import DataSetMember
from rollbus.schemas.records.drops import DeadLetter, Drop, ProducerReport
from rollbus.schemas.records.replays import ReplayManifest, ReplayRange


def _run_id(record: Drop | ConfigApplied) -> str:
    return record.run_id or ""


def _trajectory_ids(record: Drop) -> tuple[str, ...]:
    """Return the trajectories whose fate a drop decides; a dropped trajectory names itself alone."""
    if record.unit == "trajectory" and not record.trajectory_ids:
        return (record.unit_id,)
    return record.trajectory_ids


def _ranges(ranges: tuple[ReplayRange, ...]) -> list[tuple[str, int, int, int]]:
    return [
        (replay_range.topic, replay_range.partition, replay_range.from_offset, replay_range.to_offset)
        for replay_range in ranges
    ]


DROPS = Fill(
    "drops",
    {
        **columns_of(Drop, leave_out=("trajectory_ids",)),
        "run_id": _run_id,
        "trajectories": lambda record: len(_trajectory_ids(record)),
    },
)
_DROP_TRAJECTORIES = Fill(
    "drop_trajectories", {**columns_of(Drop, leave_out=("trajectory_ids", "detail")), "run_id": _run_id}
)
DEAD_LETTERS = Fill(
    "dead_letters", {**columns_of(DeadLetter, leave_out=("timestamp_ms",)), "timestamp": Time("timestamp_ms")}
)
PRODUCER_REPORTS = Fill("producer_reports", columns_of(ProducerReport))
CONFIG_APPLIED = Fill("config_applied", {**columns_of(ConfigApplied), "run_id": _run_id})
DATA_SET_MEMBERS = Fill("data_set_members", columns_of(DataSetMember))
RUN_COMMANDS = Fill("run_commands", columns_of(RunCommand))
REPLAYS = Fill(
    "replays",
    {
        **columns_of(ReplayManifest, leave_out=("namespace", "from_ms", "to_ms", "configs", "finished_at_ms")),
        "replay_namespace": lambda record: record.namespace,
        "ranges": lambda record: _ranges(record.ranges),
        "missing": lambda record: _ranges(record.missing),
        "from_at": lambda record: optional_time_ms(record.from_ms),
        "to_at": lambda record: optional_time_ms(record.to_ms),
        "overrides": lambda record: {
            f"{override.stage}.{override.run_id}" if override.run_id else override.stage: override.content
            for override in record.overrides
        },
        "digests": lambda record: {digest.stage: digest.digest for digest in record.digests},
        "dead_letters": lambda record: sum(digest.dead_letters for digest in record.digests),
        "finished_at": lambda record: optional_time_ms(record.finished_at_ms),
    },
)
"""A later manifest of the same name takes the place of an earlier one."""


def drop_trajectories(record: Drop, origin: Origin) -> Rows:
    """Return one row for each trajectory whose fate a drop decides."""
    return [
        ("drop_trajectories", _DROP_TRAJECTORIES.row(record, origin, trajectory_id=trajectory_id))
        for trajectory_id in _trajectory_ids(record)
    ]
