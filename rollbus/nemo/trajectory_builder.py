"""The trajectory builder: a dataset through the workflow, every attempt an episode on the bus.

    example × generation ─▶ evaluation ─▶ compute_reward, end ─▶ (the stream) ─▶ groups ─▶ collection

A generation is one evaluation of the toolkit; all run at once. Their episodes end together, once they are scored, so a
slow attempt does not miss its group.
"""

import asyncio
import logging
import os
from itertools import chain
from typing import Any, SupportsFloat

from nat.data_models.evaluate_runtime import EvaluationRunOutput
from nat.data_models.finetuning import TrajectoryCollection
from nat.finetuning.interfaces.trajectory_builder import TrajectoryBuilder

from rollbus.nemo import troubles
from rollbus.nemo.bus.publish_trajectories import count
from rollbus.nemo.bus.transcripts import PUBLISHED, STEP_REWARD
from rollbus.nemo.components import BusTrajectoryBuilderConfig
from rollbus.nemo.evaluation import PLAY, Play, PlayedAttempt, evaluate
from rollbus.nemo.runs.outputs import append_line
from rollbus.nemo.runs.run import Run, current_run

logger = logging.getLogger(__name__)


class BusTrajectoryBuilder(TrajectoryBuilder):
    """Plays epochs."""

    def __init__(self, trajectory_builder_config: BusTrajectoryBuilderConfig) -> None:
        super().__init__(trajectory_builder_config)
        self.config = trajectory_builder_config
        self.evaluation_runs: dict[str, list[asyncio.Task[EvaluationRunOutput | None]]] = {}
        """By run id: the generations of the epoch that is played."""
        self._plays: dict[str, list[Play]] = {}
        self._epochs: dict[str, int] = {}
        self._reasoning: dict[str, Any] = {}
        """Of the evaluator, by trajectory id."""

    @property
    def num_generations(self) -> int:
        """Return how many attempts each example has."""
        return self.config.num_generations

    async def run_eval(self) -> EvaluationRunOutput:
        """Run the dataset through the workflow once, recorded."""
        return await evaluate(self.run_config, self._run())

    async def start_run(self, run_id: str, meta: dict[str, Any] | None = None) -> None:
        """Begin to play an epoch: `meta["epoch"]`, or the one after the last."""
        if run_id in self.evaluation_runs:
            raise ValueError(f"Run {run_id} is already in progress.")
        epoch = self._epochs[run_id] = (meta or {}).get("epoch", self._epochs.get(run_id, -1) + 1)
        self._plays[run_id] = self.new_plays(epoch, run_id)
        self.evaluation_runs[run_id] = [asyncio.create_task(self.play(play)) for play in self._plays[run_id]]

    def new_plays(self, epoch: int, run_id: str) -> list[Play]:
        """Return what an epoch plays, all at once."""
        logger.info("Starting %d evaluation runs for run_id: %s", self.num_generations, run_id)
        attempts, keeps_failed = self.config.max_attempts, self.config.failure_reward is not None
        size = self.num_generations
        return [Play(epoch, generation, size, attempts, keeps_failed) for generation in range(size)]

    async def finalize(self, run_id: str, meta: dict[str, Any] | None = None) -> TrajectoryCollection:
        """Return the epoch's trajectories, once the stream has grouped or dropped every one."""
        if run_id not in self.evaluation_runs:
            raise ValueError(f"No evaluation runs found for run_id: {run_id}")
        outputs = await asyncio.gather(*self.evaluation_runs.pop(run_id), return_exceptions=True)
        plays, run = self._plays.pop(run_id), self._run()
        failures = [output for output in outputs if isinstance(output, BaseException)]
        for failure in failures:
            if len(failures) == len(outputs) or not isinstance(failure, Exception):
                raise failure
        for play, output in zip(plays, outputs, strict=True):
            await self.end_play(play, output, meta)
        played = [trajectory_id for play in plays for trajectory_id in play.trajectory_ids]
        await run.settle(played, self._epochs[run_id])
        collection = TrajectoryCollection(trajectories=run.collected(played), run_id=run_id)
        for trajectory in chain(*collection.trajectories):
            metadata = trajectory.metadata = trajectory.metadata or {}
            metadata["reasoning"] = self._reasoning.get(metadata[PUBLISHED])
        examples = len({str((group[0].metadata or {})["id"]) for group in collection.trajectories})
        logger.info("Built %d trajectories across %d examples for run_id: %s", count(collection), examples, run_id)
        return collection

    async def compute_reward(self, output_item: Any, meta: dict[str, Any] | None = None) -> float | None:
        """Return an example's score; None without one, which is not 0."""
        return troubles.as_number(output_item.score)

    def log_progress(self, run_id: str, metrics: dict[str, Any], output_dir: str | None = None) -> None:
        """Append a line to trajectory_builder_<run>.jsonl."""
        folder = output_dir or self.run_config.output_dir
        line = {"run_id": run_id, "num_generations": self.num_generations, **metrics}
        append_line(os.path.join(folder, f"trajectory_builder_{run_id}.jsonl"), line)

    async def play(self, play: Play) -> EvaluationRunOutput | None:
        """Play a part of an epoch."""
        PLAY.set(play)
        return await self.run_eval()

    async def end_play(self, play: Play, output: EvaluationRunOutput | BaseException | None, meta: Any) -> None:
        """Report what every attempt of a generation was worth, and end its episode."""
        if output is None or isinstance(output, BaseException):
            logger.error("generation %d of epoch %d failed: %s", play.generation, play.epoch + 1, output)
            scores = None
        else:
            scores = dict(output.evaluation_results).get(self._run().plan.reward)
        items = {} if scores is None else {str(item.id): item for item in scores.eval_output_items}
        for example, played in play.played.items():
            item = items.get(example)
            if played.error is not None:
                worth = self.config.failure_reward
            else:
                worth = await self._worth(item, {**(meta or {}), "generation": play.generation}) if item else None
            if worth is None:
                raised = self._run().tally.evaluator_errors.get(self._run().plan.reward)
                why = getattr(item, "error", None) or getattr(item, "reasoning", None) or raised or "it says no more"
                what_it_gave = "left it out" if item is None else f"gave it {getattr(item, 'score', None)!r}"
                message = "example %s, generation %d has no reward: the evaluator %s; %s"
                logger.warning(message, example, play.generation, what_it_gave, why)
            self._end(played, worth, item)

    async def _worth(self, item: Any, meta: dict[str, Any]) -> float | None:
        reward = await self.compute_reward(item, meta)
        if reward is not None:
            troubles.require_type(reward, SupportsFloat, f"{type(self).__name__}.compute_reward", "a number or None")
        worth, shaped = troubles.as_number(reward), troubles.step_rewards(item)
        is_whole = worth is not None and shaped is not None and troubles.as_number(worth + sum(shaped)) is not None
        return worth if is_whole else None

    def _end(self, played: PlayedAttempt, worth: float | None, item: Any) -> None:
        """Report what an attempt was worth, step by step and as a whole, and end its episode."""
        name = self._run().plan.reward
        shaped = troubles.step_rewards(item) or []
        for turn, value in zip(played.turns, shaped, strict=False):
            played.episode.reward(value, name=f"{name}.{STEP_REWARD}", turn=turn, source="evaluator")
        if worth is not None:
            reasoning = self._reasoning[played.attempt.trajectory_id] = getattr(item, "reasoning", None)
            comment = None if reasoning is None else str(reasoning)
            played.episode.reward(worth + sum(shaped), name=name, source="evaluator", comment=comment)
        played.episode.end()

    def _run(self) -> Run:
        return current_run("rollbus_traj_builder")
