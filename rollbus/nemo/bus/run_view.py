"""Records of the log → the state of a finetuning run: pure, and the same after a restart that reads them again.

Epoch and curriculum window are one: an epoch ends with one `end_window`, so window n is epoch n.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from rollbus.schemas.ids import natural_order, stable_id, trajectory_id
from rollbus.schemas.records.control import RunCommand, Tick
from rollbus.schemas.records.drops import Drop
from rollbus.schemas.records.events import EpisodeEnded, EpisodeStarted
from rollbus.schemas.records.groups import CurriculumState, Group, TrainingBatch
from rollbus.schemas.records.steps import PolicyVersion, StepCompleted, StepFailed, StepSkipped, StepStarted
from rollbus.schemas.records.trajectories import RewardRevised, Trajectory

GROUP_SEPARATOR = "/"


@dataclass(frozen=True, slots=True)
class ExampleAttempt:
    """One generation of one example in one epoch; failed ones before it have other ids."""

    run_id: str
    epoch: int
    example_id: str
    generation: int
    number: int = 0

    @property
    def episode_id(self) -> str:
        """Return the id of its episode: the same after a restart."""
        parts = (self.run_id, self.epoch, self.example_id, self.generation, self.number)
        return stable_id("finetune-episode", *parts)

    @property
    def trajectory_id(self) -> str:
        """Return the id of what its episode becomes."""
        return trajectory_id(self.episode_id)


def group_id_of(run_id: str, epoch: int, example_id: str) -> str:
    """Return the explicit group of an example's attempts in an epoch: the hint that brings them to one partition."""
    return GROUP_SEPARATOR.join((run_id, str(epoch), example_id))


def command_id_of(run_id: str, epoch: int) -> str:
    """Return the id of the command that ends an epoch: with one id, the command counts once."""
    return stable_id("finetune-epoch", run_id, epoch)


@dataclass(slots=True)
class RunView:
    """What the log says of one run."""

    run_id: str
    trajectories: dict[str, Trajectory] = field(default_factory=dict)
    groups: dict[str, Group] = field(default_factory=dict)
    """In order of arrival, as grouping made them."""
    group_id_by_trajectory: dict[str, str] = field(default_factory=dict)
    drop_reasons: dict[str, str] = field(default_factory=dict)
    """By trajectory id: the reason of its first drop, with the detail."""
    revisions: dict[str, int] = field(default_factory=dict)
    """By trajectory id: how often its rewards were revised."""
    late_revisions: set[str] = field(default_factory=set)
    """Revisions that came after their group, as `<trajectory id>#<number>`, or `<trajectory id>` where the stages have
    forgotten the trajectory; the trainer reads them in the scores."""
    windows: dict[int, CurriculumState] = field(default_factory=dict)
    commands: set[str] = field(default_factory=set)
    """Ids of those that end an epoch."""
    is_paused: bool = False
    """By an operator, until the run is resumed."""
    stream_time_ms: int = 0
    """Of the newest tick in the run's log: what came before it has passed every stage up to there."""
    batches: dict[str, TrainingBatch] = field(default_factory=dict)
    """By hash, in the order in which they were cut."""
    batch_hash_by_group: dict[str, str] = field(default_factory=dict)
    completed: dict[str, StepCompleted] = field(default_factory=dict)
    skipped: dict[str, StepSkipped] = field(default_factory=dict)
    failures: dict[str, list[StepFailed]] = field(default_factory=dict)
    open_steps: set[str] = field(default_factory=set)
    """Hashes of the batches that the trainer works on."""
    checkpoints: dict[int, str] = field(default_factory=dict)
    """By policy version: where its weights are, as the backend names it."""
    started_episodes: set[str] = field(default_factory=set)
    """Episode ids."""
    stop_reasons: dict[str, str] = field(default_factory=dict)
    """By episode id, of all runs: the end of an episode does not name its run."""

    def take_records(self, records: Iterable[Any]) -> bool:
        """Take in records, and say whether any of them is the run's; a record that came before changes nothing."""
        return sum(self._take_record(record) for record in records) > 0  # not `any`, which would stop at the first

    def is_settled(self, trajectory_ids: Iterable[str]) -> bool:
        """Whether each of these trajectories is here with its group, or has a drop."""
        return all(
            trajectory_id in self.trajectories
            if trajectory_id in self.group_id_by_trajectory
            else trajectory_id in self.drop_reasons
            for trajectory_id in trajectory_ids
        )

    def groups_of(self, trajectory_ids: Iterable[str]) -> list[Group]:
        """Return the groups of these trajectories by their examples' ids, in which numbers are ordered as numbers."""
        group_ids = {self.group_id_by_trajectory.get(trajectory_id) for trajectory_id in trajectory_ids}
        groups = (group for group_id, group in self.groups.items() if group_id in group_ids)
        return sorted(groups, key=lambda group: natural_order(group.group_key))

    def trajectory_ids_of(self, epoch: int) -> list[str]:
        """Return the ids of an epoch's trajectories."""
        return [
            trajectory_id
            for trajectory_id, trajectory in self.trajectories.items()
            if trajectory.labels.get("epoch") == str(epoch)
        ]

    def batches_of(self, window: int) -> list[TrainingBatch]:
        """Return the batches that were cut from a window, in order."""
        return [batch for batch in self.batches.values() if batch.window == window]

    def is_revised(self, revision: RewardRevised) -> bool:
        """Whether the stages have taken in a revision of a trajectory whose group is closed, or have forgotten it."""
        return not self.late_revisions.isdisjoint(
            (f"{revision.trajectory_id}#{revision.revision}", revision.trajectory_id)
        )

    def has_ended(self, group_id: str) -> bool:
        """Whether a group was in a step, or was dropped instead."""
        batch_hash = self.batch_hash_by_group.get(group_id)
        if batch_hash is not None:
            return self.is_closed(batch_hash)
        group = self.groups.get(group_id)
        return group is not None and all(member.trajectory_id in self.drop_reasons for member in group.members)

    def is_closed(self, batch_hash: str) -> bool:
        """Whether a batch was trained or skipped, however often it failed before."""
        return batch_hash in self.completed or batch_hash in self.skipped

    def last_failure(self, batch_hash: str) -> StepFailed | None:
        """Return the newest failed attempt at a batch."""
        failures = self.failures.get(batch_hash)
        return failures[-1] if failures else None

    def newest_version(self) -> int:
        """Return the version after the last completed step; 0 is the base model."""
        return max((step.policy_version for step in self.completed.values()), default=0)

    def next_epoch(self) -> int:
        """Return the epoch whose window is still open."""
        return max(self.windows, default=-1) + 1

    def count_drop_reasons(self, trajectory_ids: Iterable[str], crashes: Mapping[str, str]) -> dict[str, int]:
        """Return how many of these were dropped, by reason; `crashes` has the error of each whose workflow crashed."""
        reasons = (
            f"crashed ({crashes[trajectory_id]})" if trajectory_id in crashes else self.drop_reasons[trajectory_id]
            for trajectory_id in trajectory_ids
            if trajectory_id not in self.group_id_by_trajectory and trajectory_id in self.drop_reasons
        )
        return dict(sorted(Counter(reasons).items()))

    def _take_record(self, record: Any) -> bool:
        """Take in a record; return False for one that names no run, or another."""
        match record:
            case Trajectory() if record.labels.get("run") == self.run_id:
                self.trajectories.setdefault(record.trajectory_id, record)
            case RewardRevised() if record.trajectory_id in self.trajectories and not record.excluded:
                newest = self.revisions.get(record.trajectory_id, 0)
                self.revisions[record.trajectory_id] = max(newest, record.revision)
            case EpisodeStarted() if record.labels.get("run") == self.run_id:
                self.started_episodes.add(record.episode_id)
            case EpisodeEnded():
                self.stop_reasons.setdefault(record.episode_id, record.stop_reason)
                return record.episode_id in self.started_episodes
            case Tick():
                self.stream_time_ms = max(self.stream_time_ms, record.stream_time_ms)
                return False
            case Drop() if record.run_id in (None, self.run_id):
                self._drop(record)
                return record.run_id is not None
            case _ if getattr(record, "run_id", None) == self.run_id:
                self._take_record_of_run(record)
            case _:
                return False
        return True

    def _take_record_of_run(self, record: Any) -> None:
        match record:
            case Group():
                self.groups.setdefault(record.group_id, record)
                for member in record.members:
                    self.group_id_by_trajectory.setdefault(member.trajectory_id, record.group_id)
            case CurriculumState():
                self.windows.setdefault(record.window, record)
            case PolicyVersion():
                self.checkpoints.setdefault(record.version, record.checkpoint)
            case RunCommand(command="end_window"):
                self.commands.add(record.command_id)
            case RunCommand(command="pause" | "resume"):
                self.is_paused = record.command == "pause"
            case TrainingBatch():
                self.batches.setdefault(record.batch_hash, record)
                self.batch_hash_by_group |= {group.group_id: record.batch_hash for group in record.groups}
            case StepStarted() if not self.is_closed(record.batch_hash):
                self.open_steps.add(record.batch_hash)
            case StepCompleted():
                self.open_steps.discard(record.batch_hash)
                self.completed.setdefault(record.batch_hash, record)
            case StepSkipped():
                self.open_steps.discard(record.batch_hash)
                self.skipped.setdefault(record.batch_hash, record)
            case StepFailed():
                self.open_steps.discard(record.batch_hash)
                failures = self.failures.setdefault(record.batch_hash, [])
                if record not in failures:
                    failures.append(record)

    def _drop(self, drop: Drop) -> None:
        reason = f"{drop.reason} ({drop.detail})" if drop.detail and drop.unit == "trajectory" else drop.reason
        for member_id in drop.trajectory_ids:
            self.drop_reasons.setdefault(member_id, reason)
        if drop.unit == "event":
            self.late_revisions.add(drop.unit_id)
        if drop.unit == "episode":
            self.drop_reasons.setdefault(trajectory_id(drop.unit_id), reason)
