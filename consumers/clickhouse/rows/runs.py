"""Groups, curriculum windows and batches of a run → their tables."""

from rollbus.consumers.clickhouse.store.fills import Fill, columns_of
from rollbus.consumers.clickhouse.store.origin import Origin, Rows, time_ms
from rollbus.schemas.records.groups import CurriculumState, Group, GroupMember, TrainingBatch

GROUPS = Fill("groups", {**columns_of(Group), "size": lambda record: len(record.members)})
CURRICULUM_STATES = Fill("curriculum_states", columns_of(CurriculumState))
BATCHES = Fill(
    "batches",
    {
        **columns_of(TrainingBatch),
        "groups": lambda record: len(record.groups),
        "trajectories": lambda record: sum(len(group.members) for group in record.groups),
    },
)
_MEMBERS = Fill("group_members", columns_of(GroupMember, leave_out=("revised_at", "hints_at")))


def group_members(record: Group, origin: Origin) -> Rows:
    """Return the members of a group."""
    shared = {"run_id": record.run_id, "group_id": record.group_id, "closed_at": time_ms(record.closed_at_ms)}
    return [("group_members", _MEMBERS.row(member, origin, **shared)) for member in record.members]


def batch_groups(record: TrainingBatch, origin: Origin) -> Rows:
    """Return the groups of a batch in their order; the groups themselves came over the run's log."""
    shared = {"run_id": record.run_id, "batch_hash": record.batch_hash, "number": record.number}
    return [
        ("batch_groups", origin.row(**shared, position=position, group_id=group.group_id))
        for position, group in enumerate(record.groups)
    ]
