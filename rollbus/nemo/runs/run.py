"""One finetuning run: what was configured, its name, its log and its recorder; and what the log has of it.

The parts find the run that they belong to here: `rollbus finetune` opens it before it makes them, and under
`nat finetune` the trainer does when it is initialized.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from nat.data_models.finetuning import Trajectory, TrajectoryCollection

from rollbus.nemo import troubles
from rollbus.nemo.bus.publish_trajectories import example_names, has_pairs, id_of, record_trajectory
from rollbus.nemo.bus.run_log import RunLog
from rollbus.nemo.bus.run_view import ExampleAttempt
from rollbus.nemo.bus.transcripts import PUBLISHED, as_trajectory
from rollbus.nemo.runs.folder import RunRecord, now, write_run
from rollbus.nemo.runs.plan import Plan
from rollbus.nemo.runs.run_recording import RunRecording, Tally
from rollbus.schemas.errors import ConfigurationError, RunStoppedError
from rollbus.trainer.backends.protocol import Backend
from rollbus.trainer.loop.loop import Trainer
from rollbus.trainer.process import make_log
from rollbus.trainer.settings import TrainerSettings

if TYPE_CHECKING:
    from rollbus.nemo.runs.processes import Processes

logger = logging.getLogger(__name__)

SOLVED = 1.0
"""Reward of every attempt of an epoch that leaves nothing to learn."""


async def _refuse_to_host(backend: Backend) -> None:
    raise ConfigurationError("this run has no trainer loop for an adapter of your own")


@dataclass(slots=True)
class Run:
    """A run whose log is open."""

    plan: Plan
    run_id: str
    log: RunLog
    resume: bool = False
    host: Callable[[Backend], Awaitable[None]] = _refuse_to_host
    """Begins to bring a backend in this process the run's batches."""
    folder: Path | None = None
    """Where such a backend keeps its journal."""
    is_well: bool = True
    """Whether no job has failed."""
    built_epochs: set[int] = field(default_factory=set)
    """Epochs whose trajectories are episodes, and not preference pairs."""
    reasons: dict[int, dict[str, int]] = field(default_factory=dict)
    """By epoch: why trajectories were left out before their groups, with their number."""
    crashes: dict[str, str] = field(default_factory=dict)
    """By trajectory id: why an attempt without a reward crashed, of those made in this process."""
    tally: Tally = field(default_factory=Tally)
    """Of the attempts since the last epoch began."""

    @property
    def recording(self) -> RunRecording:
        """The recorder."""
        return self.log.recording

    def closed_epoch(self, epoch: int) -> TrajectoryCollection | None:
        """Return what an earlier process collected in an epoch whose window is closed; None of one to be played."""
        view = self.log.view
        if not self.resume or epoch not in view.windows:
            return None
        return TrajectoryCollection(trajectories=self.collected(view.trajectory_ids_of(epoch)), run_id=self.run_id)

    def collected(self, ids: Iterable[str]) -> list[list[Trajectory]]:
        """Return what the stages keep of trajectories, by groups."""
        groups = self.log.view.groups_of(ids)
        return [[self.trajectory(member.trajectory_id, member.reward) for member in group.members] for group in groups]

    def trajectory(self, trajectory_id: str, worth: float) -> Trajectory:
        """Return a trajectory of the log in the toolkit's form, with what its builder asks for."""
        include_tool_calls = self.plan.attempts.include_tool_calls
        return as_trajectory(self.log.view.trajectories[trajectory_id], worth, include_tool_calls=include_tool_calls)

    async def settle(self, ids: Collection[str], epoch: int) -> None:
        """Wait until the stages have grouped or dropped each trajectory, and remember why they dropped any."""
        await self.recording.flush()
        await self.log.wait_for(lambda view: view.is_settled(ids), f"the groups of epoch {epoch + 1}")
        if reasons := self.log.view.count_drop_reasons(ids, self.crashes):
            logger.warning("left out of epoch %d: %s", epoch + 1, troubles.describe_counts(reasons))
        self.reasons[epoch] = self.reasons.get(epoch, {}) | reasons

    def untrained_epochs(self) -> dict[int, dict[str, int]]:
        """Return the epochs that trained nothing though not all is solved, with why trajectories were left out."""
        view = self.log.view
        untrained = {}
        for epoch in sorted(self.built_epochs | view.windows.keys()):
            groups = view.groups_of(view.trajectory_ids_of(epoch))
            rewards = [member.reward for group in groups for member in group.members]
            is_solved = min(rewards, default=0.0) >= SOLVED
            if not is_solved and not any(batch.batch_hash in view.completed for batch in view.batches_of(epoch)):
                members = [member.trajectory_id for group in groups for member in group.members]
                after_groups = Counter(view.drop_reasons[member] for member in members if member in view.drop_reasons)
                untrained[epoch] = self.reasons.get(epoch, {}) | after_groups
        return untrained

    async def publish(self, collection: TrajectoryCollection, epoch: int) -> TrajectoryCollection:
        """Put those trajectories of an epoch on the log that are not there yet; return what the stages keep of it.

        An attempt that an earlier process put there counts as it is there, and not as it was built again.
        """
        if has_pairs(collection):
            return collection
        view = self.log.view
        shared = {
            "reward_name": self.plan.reward,
            "model": f"{self.plan.model}@{view.newest_version()}",
            "function": next(iter(self.plan.config.finetuning.target_functions), ""),  # without any, each is a target
        }
        recordings, ids, earlier_ids = [], [], []
        for name, group in zip(example_names(collection), collection.trajectories, strict=True):
            for position, trajectory in enumerate(group):
                metadata = trajectory.metadata = dict(trajectory.metadata or {})
                if PUBLISHED not in metadata or metadata["epoch"] != epoch:  # a builder may give one in each epoch
                    attempt, is_finished = self.next_attempt(ExampleAttempt(self.run_id, epoch, name, position))
                    metadata |= {PUBLISHED: attempt.trajectory_id, "epoch": epoch}
                    if is_finished:
                        earlier_ids.append(attempt.trajectory_id)
                    else:
                        size = len(group)
                        recordings.append(
                            record_trajectory(self.recording, attempt, trajectory, group_size=size, **shared)
                        )
                ids.append(str(metadata[PUBLISHED]))
        await asyncio.gather(*recordings)
        await self.settle(ids, epoch)
        logged = {id_of(member): member for group in self.collected(earlier_ids) for member in group}
        groups = [
            [
                logged[record_id] if record_id in earlier_ids else member
                for member in group
                if (record_id := id_of(member)) in view.group_id_by_trajectory
            ]
            for group in collection.trajectories
        ]
        return TrajectoryCollection(trajectories=[*filter(None, groups)], run_id=collection.run_id)

    def next_attempt(self, attempt: ExampleAttempt) -> tuple[ExampleAttempt, bool]:
        """Return the attempt to make now, and whether an earlier process has finished it."""
        view = self.log.view
        while attempt.episode_id in view.started_episodes or attempt.episode_id in view.stop_reasons:
            reason = view.stop_reasons.get(attempt.episode_id)
            if reason == "completed":
                return attempt, True
            if reason is None:
                with self.recording.recorder.attach(attempt.episode_id) as episode:
                    episode.exclude("the process that played it was killed; it is played again")
            attempt = replace(attempt, number=attempt.number + 1)
        return attempt, False


CURRENT: ContextVar[Run | None] = ContextVar("rollbus_run", default=None)


def current_run(part: str) -> Run:
    """Return the open run; raises ConfigurationError where there is none."""
    run = CURRENT.get()
    if run is None:
        raise ConfigurationError(
            f"{part} needs a run on the bus; name a trainer of `_type: rollbus_trainer`, or run `rollbus finetune`"
        )
    return run


@asynccontextmanager
async def training(settings: TrainerSettings, backend: Backend, log: RunLog) -> AsyncIterator[None]:
    """Bring a backend the run's batches while the block lasts, by the loop that the trainer's process has."""
    ledger = make_log(settings)
    trainer = Trainer(ledger, backend, settings)
    task = asyncio.create_task(trainer.run())

    def check() -> None:
        """Raise what ended the loop; a step that failed for good is on the log."""
        error = task.exception() if task.done() and not task.cancelled() else None
        if error is not None and not isinstance(error, RunStoppedError):
            raise error

    log.checks.append(check)
    try:
        yield
    finally:
        trainer.stop()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await ledger.close()


@asynccontextmanager
async def opened_run(plan: Plan, record: RunRecord, processes: "Processes", *, resume: bool) -> AsyncIterator[Run]:
    """Open a run's log; its processes run. At a good end ClickHouse has everything, and the record says how it was."""
    from rollbus.nemo.runs.settings import processed_logprobs

    run_id, final_record = record.run_id, replace(record, state="failed")
    bus = processes.bus(resume=resume, began_at=record.began_at)
    recording = RunRecording(processes.namespace, bus.sink, processed=processed_logprobs(plan.config))
    log = RunLog(bus, run_id, recording, check=processes.check)
    await bus.open()
    try:
        await log.begin(resume=resume)
        async with AsyncExitStack() as hosting:
            hosting.enter_context(recording.instrumented())

            async def host(backend: Backend) -> None:
                await hosting.enter_async_context(training(processes.trainer_settings(), backend, log))

            CURRENT.set(run := Run(plan, run_id, log, resume, host, record.folder))
            write_run(record)
            try:
                yield run
                final_record = replace(record, state="completed" if run.is_well else "failed")
            except (asyncio.CancelledError, KeyboardInterrupt, SystemExit):  # a signal, which ends this process
                final_record = replace(record, state="interrupted")
                raise
            finally:
                version = log.view.newest_version()
                checkpoint = log.view.checkpoints.get(version, "")
                write_run(replace(final_record, ended_at=now(), policy_version=version, checkpoint=checkpoint))
        await processes.drain()
    finally:
        CURRENT.set(None)
        await log.close()
