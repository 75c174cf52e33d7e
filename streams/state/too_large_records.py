"""A record above the limit becomes drops that name the units that go no further. Pure."""

from typing import Any

from rollbus.schemas.errors import RecordTooLargeError
from rollbus.schemas.records.drops import DropReason
from rollbus.schemas.records.groups import ClosedGroup, Group, TrainingBatch
from rollbus.schemas.records.trajectories import Score, Trajectory
from rollbus.streams.state.stage import Outgoing, make_drop

MAX_KEY_CHARACTERS = 1_000


def drops_instead(record: Any, size: int, *, stage: str, now_ms: int) -> list[Outgoing]:
    """Return the drops that replace an output of `size` bytes; raises RecordTooLargeError for one without a unit."""
    detail = f"its {type(record).__name__} has {size} bytes"
    match record:
        case Trajectory() | Score():
            name = record.trajectory_id
            return [
                make_drop(
                    "trajectory",
                    name,
                    DropReason.TOO_LARGE,
                    detail,
                    stage=stage,
                    now_ms=now_ms,
                    trajectory_ids=(name,),
                )
            ]
        case Group():
            groups: tuple[Group, ...] = (record,)
        case ClosedGroup():
            groups = (record.group,)
        case TrainingBatch():
            groups = record.groups
        case _:
            raise RecordTooLargeError(f"{detail}, more than a record may have")
    return [
        make_drop(
            "group",
            group.group_id,
            DropReason.TOO_LARGE,
            detail,
            stage=stage.partition(".")[0],
            now_ms=now_ms,
            run_id=group.run_id,
            trajectory_ids=tuple(member.trajectory_id for member in group.members),
        )
        for group in groups
    ]


def drop_of_row(key: bytes, size: int, *, stage: str, now_ms: int) -> Outgoing:
    """Return the drop for a changelog row that was not written: the state has it until the worker restarts."""
    detail = f"a row of the state has {size} bytes and does not outlive a restart of the worker"
    name = key.decode(errors="replace")[:MAX_KEY_CHARACTERS]
    return make_drop("event", name, DropReason.TOO_LARGE, detail, stage=stage, now_ms=now_ms)
