"""The built-in trajectory builder: a dataset through the workflow, every attempt an episode on the bus.

    example × generation ─▶ workflow, recorded ─▶ evaluator ─▶ reward, end ─▶ (the stream) ─▶ groups ─▶ collection

The attempts at one example end together, so a slow one does not miss its group. An attempt that fails is made again as
a new episode; the failed one stays on record. What an earlier process finished is not made again.
"""

import asyncio
import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rollbus.harness.art_components import ARTTrajectoryBuilderConfig
from rollbus.harness.calling import call
from rollbus.harness.datasets import Example
from rollbus.harness.episodes import Trajectory, TrajectoryCollection
from rollbus.harness.evaluation_models import EvalOutputItem, EvaluationRunConfig
from rollbus.harness.evaluation_run import TASK, EvaluationRun, item_of
from rollbus.harness.evaluators import EvaluatorInfo
from rollbus.harness.interfaces import TrajectoryBuilder
from rollbus.harness.outputs import append_line
from rollbus.harness.publishing import labels_of
from rollbus.harness.recording import steps_of
from rollbus.harness.run_log import RunLog
from rollbus.harness.run_view import Attempt, group_id_of
from rollbus.harness.transcripts import STEP_REWARD, as_trajectory
from rollbus.producers import Episode
from rollbus.producers.episode.context import enter, leave
from rollbus.schemas.errors import ConfigurationError
from rollbus.schemas.records.events import Event, TurnRecorded

logger = logging.getLogger(__name__)

MAX_ATTEMPTS = 3
"""Of one generation; a workflow that fails every time costs that generation only."""


@dataclass(slots=True)
class _Played:
    """A generation whose workflow has returned; its episode is still open."""

    attempt: Attempt
    episode: Episode
    score: EvalOutputItem
    turns: list[str]
    """Event ids."""


class ARTTrajectoryBuilder(TrajectoryBuilder):
    """Runs epochs."""

    def __init__(self, trajectory_builder_config: ARTTrajectoryBuilderConfig) -> None:
        super().__init__(trajectory_builder_config)
        self.config = trajectory_builder_config
        self.run_log: RunLog | None = None
        self.progress: Callable[[int, int], None] = lambda done, total: None
        self.evaluation_runs: dict[str, asyncio.Task[list[str]]] = {}
        """By run id: the epoch being played."""
        self._epochs: dict[str, int] = {}
        self.trainable_only = True
        """False also returns what has no tokens, for adapters that train on text."""
        self.last_reasons: dict[str, int] = {}
        """Why trajectories of the last epoch were left out, with their number."""

    @property
    def num_generations(self) -> int:
        """Return how many attempts each example has."""
        return self.config.num_generations

    async def start_run(self, run_id: str, meta: dict[str, Any] | None = None) -> None:
        """Begin to play an epoch: `meta["epoch"]`, or the one after the last."""
        if run_id in self.evaluation_runs:
            raise ValueError(f"Run {run_id} is already in progress.")
        epoch = (meta or {}).get("epoch", self._epochs.get(run_id, -1) + 1)
        self._epochs[run_id] = epoch
        logger.info("Starting %d evaluation runs for run_id: %s", self.num_generations, run_id)
        self.evaluation_runs[run_id] = asyncio.create_task(self._play_epoch(epoch))

    async def finalize(self, run_id: str, meta: dict[str, Any] | None = None) -> TrajectoryCollection:
        """Return the epoch's trajectories, once the stream has grouped or dropped every one."""
        if run_id not in self.evaluation_runs:
            raise ValueError(f"No evaluation runs found for run_id: {run_id}")
        log = self._log()
        played = await self.evaluation_runs.pop(run_id)
        await log.recording.flush()
        await log.wait_for(lambda view: view.settled(played), f"the groups of epoch {self._epochs[run_id]}")
        await log.wait_for(
            lambda view: all(one in view.trajectories for one in played if one in view.group_of),
            "the trajectories of the groups",
        )
        self.last_reasons = dict(log.view.reasons(played))
        if self.last_reasons:
            told = ", ".join(f"{reason}: {count}" for reason, count in self.last_reasons.items())
            logger.warning("left out of epoch %d: %s", self._epochs[run_id] + 1, told)
        groups = self._grouped(log, played) if self.trainable_only else self._scored(log, played)
        collection = TrajectoryCollection(trajectories=groups, run_id=run_id)
        logger.info(
            "Built %d trajectories across %d examples for run_id: %s",
            collection.count(),
            len({str(group[0].metadata and group[0].metadata["id"]) for group in groups if group}),
            run_id,
        )
        return collection

    def log_progress(self, run_id: str, metrics: dict[str, Any], output_dir: str | None = None) -> None:
        """Append a line to trajectory_builder_<run>.jsonl."""
        folder = output_dir or self.run_config.output_dir
        line = {"run_id": run_id, "num_generations": self.num_generations, **metrics}
        append_line(os.path.join(folder, f"trajectory_builder_{run_id}.jsonl"), line)

    # One epoch

    async def _play_epoch(self, epoch: int) -> list[str]:
        """Play what is missing; return the trajectory ids of the whole epoch."""
        builder, log = self.builder, self._log()
        assert builder is not None
        run = self.run_config.run_configuration
        config = EvaluationRunConfig(config_file=builder.config, **_choices(run))
        evaluation = EvaluationRun(config, builder)
        reward = self.run_config.reward_function
        assert reward is not None
        async with evaluation.prepared() as (examples, workflow):
            evaluator = await builder.get_evaluator(reward.name)
            places = asyncio.Semaphore(builder.config.eval.general.max_concurrency)
            total, done = len(examples) * self.num_generations, 0

            def finished() -> None:
                nonlocal done
                done += 1
                self.progress(done, total)

            self.progress(0, total)
            played = await asyncio.gather(
                *(self._play_example(epoch, one, workflow, evaluator, places, finished) for one in examples)
            )
        await log.recording.flush()
        return [trajectory for group in played for trajectory in group]

    async def _play_example(
        self,
        epoch: int,
        example: Example,
        workflow: Callable[..., Any],
        evaluator: EvaluatorInfo,
        places: asyncio.Semaphore,
        finished: Callable[[], None],
    ) -> list[str]:
        """Make the attempts that are missing, end them together, and return the ids of what all of them become."""
        log = self._log()
        first = [Attempt(log.run_id, epoch, example.id, number) for number in range(self.num_generations)]
        known = [self._known(attempt) for attempt in first]

        async def one(attempt: Attempt) -> tuple[_Played | None, list[str]]:
            ids = []
            for _ in range(MAX_ATTEMPTS):
                ids.append(attempt.trajectory_id)
                async with places:
                    played = await self._attempt(attempt, example, workflow, evaluator)
                if played is not None:
                    return played, ids
                attempt = replace(attempt, number=attempt.number + 1)
            return None, ids

        async def counted(attempt: Attempt, finished_id: str | None) -> tuple[_Played | None, list[str]]:
            result = (None, [finished_id]) if finished_id is not None else await one(attempt)
            finished()
            return result

        results = await asyncio.gather(*(counted(attempt, done) for attempt, done in known))
        for played, _ in results:
            if played is not None:
                self._end(played)
        return [trajectory for _, ids in results for trajectory in ids]

    def _known(self, attempt: Attempt) -> tuple[Attempt, str | None]:
        """Return the next number of an attempt, or the trajectory of one that an earlier process finished."""
        view = self._log().view
        while attempt.episode_id in view.started or attempt.episode_id in view.ended:
            reason = view.ended.get(attempt.episode_id)
            if reason == "completed":
                return attempt, attempt.trajectory_id
            if reason is None:
                with self._log().recording.recorder.attach(attempt.episode_id) as episode:
                    episode.exclude("the process that played it was killed; it is played again")
            attempt = replace(attempt, number=attempt.number + 1)
        return attempt, None

    async def _attempt(
        self, attempt: Attempt, example: Example, workflow: Callable[..., Any], evaluator: EvaluatorInfo
    ) -> _Played | None:
        """Run the workflow once; None where it raised, which its episode's end says."""
        recording = self._log().recording
        recording.watch(attempt.episode_id)
        episode = recording.recorder.start(
            task=TASK,
            example_id=example.id,
            group_id=group_id_of(attempt.run_id, attempt.epoch, example.id),
            group_size=self.num_generations,
            labels=labels_of(attempt),
            episode_id=attempt.episode_id,
        )
        token = enter(episode)
        try:
            with recording.recorder.function("<workflow>"):
                output = await call(workflow, example.input)
        except Exception as error:
            logger.warning("example %s, generation %d failed: %r", example.id, attempt.generation, error)
            episode.end("error", f"{type(error).__name__}: {error}")
            await recording.take(attempt.episode_id)
            return None
        finally:
            leave(token)
        events = await recording.take(attempt.episode_id)
        score = await evaluator.evaluate_item(item_of(example, output, steps_of(events)))
        if score.score is None:
            logger.warning("example %s has no score: %s", example.id, score.error or score.reasoning or "None")
        return _Played(attempt, episode, score, _turn_ids(events))

    def _end(self, played: _Played) -> None:
        """Report what an attempt was worth, step by step and as a whole, and end its episode."""
        assert self.run_config.reward_function is not None
        name, score = self.run_config.reward_function.name, played.score
        shaped = [float(value) for value in getattr(score, "shaped_rewards", None) or ()]
        for turn, value in zip(played.turns, shaped, strict=False):
            played.episode.reward(value, name=f"{name}.{STEP_REWARD}", turn=turn, source="evaluator")
        if score.score is not None:
            told = None if score.reasoning is None else str(score.reasoning)
            played.episode.reward(float(score.score) + sum(shaped), name=name, source="evaluator", comment=told)
        played.episode.end()

    def _grouped(self, log: RunLog, played: Sequence[str]) -> list[list[Trajectory]]:
        """Return what the stream grouped: what can be trained on recorded tokens."""
        return [
            [self._as_trajectory(log, member.trajectory_id, member.reward) for member in group.members]
            for group in log.view.groups_of(played)
        ]

    def _scored(self, log: RunLog, played: Sequence[str]) -> list[list[Trajectory]]:
        """Return everything that has a score, with or without tokens: for adapters that train on text."""
        assert self.run_config.reward_function is not None
        name = self.run_config.reward_function.name
        groups: dict[str | None, list[Trajectory]] = {}
        for one in played:
            record = log.view.trajectories.get(one)
            worth = [report.value for report in record.rewards if report.name == name] if record is not None else []
            if record is not None and worth:
                groups.setdefault(record.example_id, []).append(self._as_trajectory(log, one, worth[-1]))
        return list(groups.values())

    def _as_trajectory(self, log: RunLog, trajectory_id: str, worth: float) -> Trajectory:
        record = log.view.trajectories[trajectory_id]
        return as_trajectory(record, worth, include_tool_calls=self.config.include_tool_calls)

    def _log(self) -> RunLog:
        if self.run_log is None:
            raise ConfigurationError("the built-in trajectory builder needs the bus; run it through `rollbus finetune`")
        return self.run_log


def _choices(run: Any) -> dict[str, Any]:
    names = ("dataset", "result_json_path", "endpoint", "endpoint_timeout", "override")
    return {} if run is None else {name: getattr(run, name) for name in names}


def _turn_ids(events: Sequence[Event]) -> list[str]:
    return [event.event_id for event in events if isinstance(event, TurnRecorded)]
