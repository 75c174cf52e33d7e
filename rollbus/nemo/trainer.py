"""The trainer: epoch after epoch, collect, choose, submit, wait, write down.

Every part of an epoch that an earlier process finished is found done, so a resumed run goes through the same epochs
and writes the same rows. Validation runs before the epochs that are a multiple of its interval, and after the last.
"""

import asyncio
import logging
from contextlib import AsyncExitStack
from pathlib import Path
from statistics import fmean
from typing import Any

from nat.data_models.finetuning import (
    CurriculumLearningConfig,
    FinetuneConfig,
    TrainingJobRef,
    TrainingJobStatus,
    TrainingStatusEnum,
    TrajectoryCollection,
)
from nat.finetuning.interfaces.finetuning_runner import Trainer

from rollbus.nemo import troubles
from rollbus.nemo.bus.publish_trajectories import count, has_pairs, rewards_of, summary_of, total
from rollbus.nemo.components import BusTrainerConfig
from rollbus.nemo.curriculum import CurriculumChoice, choose, describe_choice
from rollbus.nemo.evaluation import CrashedExample
from rollbus.nemo.own_parts.adapter import on_ledger
from rollbus.nemo.own_parts.builder import put_on_log
from rollbus.nemo.runs.outputs import Outputs
from rollbus.nemo.runs.run import CURRENT, SOLVED, Run, current_run
from rollbus.nemo.runs.run_recording import Tally
from rollbus.nemo.trainer_adapter import LedgerAdapter
from rollbus.schemas.errors import RunStoppedError
from rollbus.schemas.records.steps import Evaluation
from rollbus.schemas.topics import EVALUATIONS
from rollbus.schemas.wall_clock import wall_clock_ms
from rollbus.streams.stages.curriculum.modes import Memory
from rollbus.trainer.ledger.log import Publication, evaluation_key
from rollbus.trainer.validation.evaluation import build_evaluation

logger = logging.getLogger(__name__)

FLAT_EPOCHS = 5
"""Without a group whose rewards differ, before the run stops: more of the same teaches nothing."""


class BusTrainer(Trainer):
    """Runs epochs."""

    def __init__(self, trainer_config: BusTrainerConfig, **kwargs: Any) -> None:
        super().__init__(trainer_config, **kwargs)
        self.curriculum_config: CurriculumLearningConfig  # type: ignore[assignment]  # None until it is initialized
        self._curriculum_state: dict[str, Any]  # type: ignore[assignment]
        self.plots = True
        """Whether reward_plot.png is drawn again after each epoch."""
        self._outputs: Outputs
        self._ledger: LedgerAdapter
        self._own_run = AsyncExitStack()
        """The run, where none was opened before: under `nat finetune`."""
        self._is_own_run = False
        self._flat = 0
        self._statuses: dict[int, TrainingJobStatus] = {}
        self._refs: dict[int, TrainingJobRef] = {}
        self._metrics: dict[int, dict[str, Any]] = {}
        self._written: dict[int, dict[str, Any]] = {}
        """Lines of epochs that an earlier process wrote down: builder and adapter have theirs, too."""

    async def initialize(self, run_config: FinetuneConfig) -> None:
        """Open the run, unless it is open, and initialize everything; a resumed curriculum continues from its state."""
        if CURRENT.get() is None:
            from rollbus.nemo.finetune import begin_run

            new_run = await self._own_run.enter_async_context(begin_run(run_config, self.trainer_config))
            put_on_log(self.trajectory_builder, new_run)
            self._is_own_run = True
        run = current_run("rollbus_trainer")
        self._ledger = on_ledger(self.trainer_adapter)
        await super().initialize(run_config)
        self._outputs = Outputs(run_config.output_dir)
        self._written = {int(row["epoch"]): row for row in self._outputs.training_rows()} if run.resume else {}
        if run.resume:
            self._outputs.write_derived_files()
        state = self._outputs.curriculum_state() if run.resume else None
        if state is not None:
            self._curriculum_state = {
                **{name: state[name] for name in ("current_percentile", "last_expansion_epoch", "total_groups")},
                "included_groups": set(state["included_groups"]),
            }
        elif not run.resume:
            self._outputs.clear()

    async def run(self, num_epochs: int) -> list[TrainingJobStatus]:
        """Run all epochs; stops after the first that fails, and where everything is solved.

        Under `nat finetune` a failed job, or an epoch that trained nothing, raises RunStoppedError at the end: that
        command ends with code 0 without an error.
        """
        statuses = await self._run_epochs(num_epochs)
        if self._is_own_run:
            failed = [status.message for status in statuses if status.status is TrainingStatusEnum.FAILED]
            untrained = self._run.untrained_epochs()
            self._run.is_well = not failed and not untrained
            if not self._run.is_well:
                raise RunStoppedError(str(failed[0]) if failed else troubles.nothing_trained(untrained))
        return statuses

    async def _run_epochs(self, num_epochs: int) -> list[TrainingJobStatus]:
        statuses: list[TrainingJobStatus] = []
        for epoch in range(num_epochs):
            await self._validate(epoch)
            ref = self._rejoin(epoch) or await self.run_epoch(epoch, self._run.run_id)
            statuses.append(status := await self._finish(epoch, ref))
            if status.status is not TrainingStatusEnum.COMPLETED:
                logger.error("Training %s failed: %s", self._run.run_id, status.message)
                return statuses
            logger.info("Completed epoch %d/%d", epoch + 1, num_epochs)
            if self._flat >= FLAT_EPOCHS:
                logger.info(
                    "%d epochs in a row had nothing to train, and every attempt of the last was rewarded %s or more: "
                    "nothing is left to learn",
                    self._flat,
                    SOLVED,
                )
                break
        await self._validate(len(statuses), last=True)
        self._warn_of_no_gain()
        return statuses

    async def run_epoch(self, epoch: int, run_id: str) -> TrainingJobRef:
        """Collect and submit one epoch."""
        logger.info("Starting epoch %d for run %s", epoch + 1, run_id)
        meta = {"epoch": epoch, "run_id": run_id, "trainer_config": self.trainer_config.model_dump()}
        await self.trajectory_builder.start_run(run_id, meta)
        collection = await self.trajectory_builder.finalize(run_id, meta)
        if not count(collection):
            run = self._run
            reasons, summary = run.reasons.get(epoch, {}), run.tally.summary(run.plan.reward)
            raise troubles.no_trajectories(epoch, self.run_config.target_functions, reasons, summary)
        chosen_collection = await self._choose(collection, epoch)
        self._metrics[epoch] = self._epoch_metrics(collection, chosen_collection)
        self._stop_where_flat(collection, chosen_collection)
        if not count(chosen_collection):
            logger.warning("No trajectories left in epoch %d after the curriculum", epoch + 1)
        on_bus = self._run.plan.curriculum_on_bus  # the run's curriculum has chosen from the collection already
        ref = self._refs[epoch] = await self._ledger.submit(collection if on_bus else chosen_collection)
        return ref

    def apply_curriculum_learning(
        self, trajectory_collection: TrajectoryCollection, epoch: int
    ) -> TrajectoryCollection:
        """Return the groups to train on, and remember what was decided."""
        seed = self._run.plan.bus.seed
        choice = choose(trajectory_collection, epoch, self._memory(), self.curriculum_config, seed)
        self._log_choice(trajectory_collection, choice, epoch)
        self._remember(choice)
        return choice.collection

    async def get_metrics(self, run_id: str) -> dict[str, Any]:
        """Return the run's jobs and how each ended, its epochs' metrics, and the curriculum's state."""
        jobs = [
            {"job_ref": ref.model_dump(), "status": self._statuses[epoch].model_dump()}
            for epoch, ref in self._refs.items()
            if epoch in self._statuses
        ]
        return {
            "run_id": run_id,
            "total_epochs": len(self._refs),
            "jobs": jobs,
            "epochs": [self._metrics[epoch] for epoch in sorted(self._metrics)],
            "curriculum": self.get_curriculum_state(),
        }

    async def cleanup(self) -> None:
        """Cancel what is still being played, and close the run where it was opened here."""
        runs = getattr(self.trajectory_builder, "evaluation_runs", None)
        lists = runs.values() if isinstance(runs, dict) else ()  # a user's own builder may mean something else by it
        tasks = [task for tasks_of_item in lists if isinstance(tasks_of_item, list) for task in tasks_of_item]
        waiting = [task for task in tasks if isinstance(task, asyncio.Task) and not task.done()]
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        await self._own_run.aclose()

    def log_progress(self, epoch: int, metrics: dict[str, Any], output_dir: str | None = None) -> None:
        """Write the epoch's line, the histories, the curriculum's state and the plot."""
        outputs = self._outputs if output_dir is None else Outputs(Path(output_dir))
        state = {"curriculum_state": self.get_curriculum_state()} if self.curriculum_config.enabled else {}
        outputs.write_epoch(epoch, self._run.run_id, {**metrics, **state})
        if self.plots:
            outputs.draw_plot()
        reward, number = metrics["avg_reward"], metrics["num_trajectories"]
        logger.info("Epoch %d progress logged - Avg Reward: %.4f, Trajectories: %d", epoch + 1, reward, number)

    async def run_validation_evaluation(self, epoch: int, run_id: str) -> dict[str, Any]:
        """Evaluate on the held-out examples; a crash counts as failed, and a failure of all as `error`, not as 0."""
        original = self.run_config.run_configuration
        assert original is not None
        validation = original.model_copy(
            update={
                "config_file": original.validation_config_file or original.config_file,
                "dataset": original.validation_dataset,
            }
        )
        builder = self.trajectory_builder
        builder.run_config = self.run_config.model_copy(update={"run_configuration": validation})
        run, no_result = self._run, {"epoch": epoch, "avg_reward": None, "num_examples": 0}
        run.tally = Tally()
        try:
            results = dict((await builder.run_eval()).evaluation_results)
        except Exception as error:
            logger.exception("validation of epoch %d failed", epoch)
            return {**no_result, "error": troubles.describe_crash(error)}
        finally:
            builder.run_config = self.run_config
        items = results[run.plan.reward].eval_output_items if run.plan.reward in results else ()
        failure_reward = run.plan.attempts.failure_reward or 0.0
        worths = (failure_reward if isinstance(item, CrashedExample) else troubles.worth_of(item) for item in items)
        rewards = [worth for worth in worths if worth is not None]
        if not rewards:
            why = run.tally.evaluator_errors.get(run.plan.reward)
            return {**no_result, "error": "no example has a score" if why is None else f"the evaluator raised {why}"}
        row = {"epoch": epoch, "dataset_type": "validation", **summary_of(rewards)}
        return {**row, "num_examples": len(rewards), "rewards": rewards}

    @property
    def _run(self) -> Run:
        return current_run("rollbus_trainer")

    def _rejoin(self, epoch: int) -> TrainingJobRef | None:
        """Return the job of an epoch that an earlier process submitted: it is not played again by any trainer."""
        collection = self._run.closed_epoch(epoch)
        if collection is None:
            return None
        choice = self._ledger.read_choice(collection, epoch)
        if self._run.plan.curriculum_on_bus:
            self._remember(choice)
        elif epoch not in self._written:
            self.apply_curriculum_learning(collection, epoch)  # for what it remembers: the choice is on the log
        self._metrics[epoch] = self._epoch_metrics(collection, choice.collection)
        self._stop_where_flat(collection, choice.collection)
        ref = self._refs[epoch] = self._ledger.job_of(epoch)
        return ref

    async def _finish(self, epoch: int, ref: TrainingJobRef) -> TrainingJobStatus:
        """Wait for the epoch's job and write everything down; what the step measured is then known too."""
        status = self._statuses[epoch] = await self._ledger.wait_until_complete(ref)
        metrics = {**self._metrics[epoch], **{f"step_{name}": value for name, value in (status.metadata or {}).items()}}
        metrics["job_status"] = status.status.value
        self._metrics[epoch] = metrics
        if epoch not in self._written:
            progress = {name: metrics[name] for name in ("num_trajectories", "num_groups", "avg_reward")}
            self.trajectory_builder.log_progress(self._run.run_id, {"epoch": epoch, **progress})
            self._ledger.log_progress(ref, {"epoch": epoch, "status": status.status.value})
        if self._written.get(epoch, {}).get("job_status") != metrics["job_status"]:
            self.log_progress(epoch, metrics)
        if status.status is TrainingStatusEnum.COMPLETED:
            logger.info("Training %s completed successfully.", self._run.run_id)
        return status

    async def _choose(self, collection: TrajectoryCollection, epoch: int) -> TrajectoryCollection:
        """Ask the run's curriculum on the bus, or decide here."""
        if has_pairs(collection):
            raise troubles.preference_pairs()
        if not self._run.plan.curriculum_on_bus:
            chosen_collection = self.apply_curriculum_learning(collection, epoch)
            troubles.require_type(
                chosen_collection, TrajectoryCollection, f"{type(self).__name__}.apply_curriculum_learning"
            )
            return chosen_collection
        choice = await self._ledger.decide(collection, epoch)
        self._log_choice(collection, choice, epoch)
        self._remember(choice)
        return choice.collection

    def _memory(self) -> Memory:
        state = self._curriculum_state
        return Memory(state["current_percentile"], state["last_expansion_epoch"], state["total_groups"] or None)

    def _log_choice(self, collection: TrajectoryCollection, choice: CurriculumChoice, epoch: int) -> None:
        """Log what the curriculum did."""
        if self.curriculum_config.enabled:
            for line in describe_choice(collection, choice, self._memory(), epoch, self.curriculum_config):
                logger.info(line)

    def _remember(self, choice: CurriculumChoice) -> None:
        self._curriculum_state = {
            "current_percentile": choice.memory.percentile,
            "last_expansion_epoch": choice.memory.last_expansion,
            "total_groups": choice.memory.total_groups or 0,
            "included_groups": set(choice.included),
        }

    def _epoch_metrics(
        self, collection: TrajectoryCollection, chosen_collection: TrajectoryCollection
    ) -> dict[str, Any]:
        enabled = self.curriculum_config.enabled
        filtered = {f"filtered_{name}": value for name, value in summary_of(rewards_of(chosen_collection)).items()}
        return {
            **summary_of(rewards_of(collection)),
            "num_trajectories": count(collection),
            "num_groups": len([*filter(None, collection.trajectories)]),
            "filtered_trajectories": count(chosen_collection),
            "filtered_groups": len(chosen_collection.trajectories),
            **filtered,
            "curriculum_percentile": self._curriculum_state["current_percentile"] if enabled else 1.0,
        }

    def _stop_where_flat(self, collection: TrajectoryCollection, chosen_collection: TrajectoryCollection) -> None:
        plan, rewards = self._run.plan, rewards_of(collection)
        single = plan.is_from_log or plan.attempts.num_generations < 2
        differ = single or any(len(set(map(total, group))) > 1 for group in collection.trajectories)
        self._flat = 0 if count(chosen_collection) and differ else self._flat + 1
        if self._flat >= FLAT_EPOCHS and min(rewards) < SOLVED:
            raise troubles.rewards_flat(self._flat, fmean(rewards))

    async def _validate(self, epoch: int, *, last: bool = False) -> None:
        run = self.run_config.run_configuration
        if run is None or not (run.validation_dataset or run.validation_config_file):
            return
        if epoch % run.validation_interval and not last:
            return
        if any(row["epoch"] == epoch and "error" not in row for row in self._outputs.validation_rows()):
            return
        logger.info("Running validation %s", "after the last epoch" if last else f"before epoch {epoch + 1}")
        metrics = await self.run_validation_evaluation(epoch, self._run.run_id)
        record = None if "error" in metrics else self._evaluation(metrics["rewards"])
        if record is not None:
            bounds = ("reward_low", "reward_high")  # the mean of one example has none
            metrics |= {f"avg_{name}": record.metrics[name] for name in bounds if name in record.metrics}
        self._outputs.write_validation(epoch, metrics)
        if self.plots:
            self._outputs.draw_plot()
        if record is None:
            logger.warning("Validation of epoch %d failed: %s", epoch + 1, metrics["error"])
            return
        logger.info("Validation - Avg Reward: %.4f, Examples: %d", metrics["avg_reward"], metrics["num_examples"])
        await self._run.log.publish([Publication(EVALUATIONS, evaluation_key(record), record)])

    def _evaluation(self, rewards: list[float]) -> Evaluation:
        """Return the record of a validation, with the 95 % interval of its mean."""
        return build_evaluation(
            {"reward": rewards},
            model=self._run.plan.model,
            policy_version=self._run.log.view.newest_version(),
            name="validation",
            now_ms=wall_clock_ms(),
            run_id=self._run.run_id,
        )

    def _warn_of_no_gain(self) -> None:
        rows = [row for row in self._outputs.validation_rows() if row.get("avg_reward") is not None]
        if len(rows) > 1 and rows[-1]["avg_reward"] <= rows[0]["avg_reward"] and rows[-1]["avg_reward"] < SOLVED:
            logger.warning(
                "Rewards are not increasing: validation went from %.4f to %.4f; try more generations, the curriculum, "
                "another learning rate, and check that the reward function separates good from bad",
                rows[0]["avg_reward"],
                rows[-1]["avg_reward"],
            )
