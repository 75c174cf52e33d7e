"""The dataset through the workflow once; the candidates of each turn become preference pairs, a trajectory each."""

import logging
import os
from collections.abc import Iterable
from typing import Any

from rollbus.consumers.export.preferences import PreferencePair, preference_pairs
from rollbus.harness.candidates import candidates_by_turn
from rollbus.harness.dpo_components import DPOTrajectoryBuilderConfig
from rollbus.harness.episodes import DPOItem, OpenAIMessage, Trajectory, TrajectoryCollection
from rollbus.harness.evaluation_models import EvalInputItem, EvaluationRunOutput
from rollbus.harness.interfaces import TrajectoryBuilder
from rollbus.harness.outputs import append_line
from rollbus.schemas.errors import RunStoppedError

logger = logging.getLogger(__name__)


class DPOTrajectoryBuilder(TrajectoryBuilder):
    """Makes pairs."""

    def __init__(self, trajectory_builder_config: DPOTrajectoryBuilderConfig) -> None:
        super().__init__(trajectory_builder_config)
        self.config = trajectory_builder_config
        self.evaluation_runs: dict[str, EvaluationRunOutput] = {}

    async def start_run(self, run_id: str, meta: dict[str, Any] | None = None) -> None:
        """Run the dataset."""
        if run_id in self.evaluation_runs:
            raise ValueError(f"Run {run_id} is already in progress.")
        self.evaluation_runs[run_id] = await self.run_eval()

    async def finalize(self, run_id: str, meta: dict[str, Any] | None = None) -> TrajectoryCollection:
        """Return the pairs, one group per example; raises RunStoppedError where no candidate was recorded."""
        items = self.evaluation_runs.pop(run_id).eval_input.eval_input_items
        groups, turns, single = [], 0, 0
        for item in items:
            found = candidates_by_turn(item.trajectory, self.config.ttc_step_name)
            turns += len(found)
            single += sum(len(candidates) < 2 for candidates in found.values())
            pairs = [
                (turn, pair)
                for turn, candidates in found.items()
                for pair in preference_pairs(
                    candidates,
                    min_margin=self.config.min_score_diff,
                    exhaustive=self.config.exhaustive_pairs,
                    max_pairs=self.config.max_pairs_per_turn,
                )
            ]
            groups.append(list(self._trajectories(run_id, item, pairs)))
        if not turns:
            raise RunStoppedError(
                f"No candidates named {self.config.ttc_step_name!r} in {len(items)} examples: see that the workflow "
                "calls score_candidate inside its run, and that ttc_step_name is the name it uses"
            )
        if single and self.config.require_multiple_candidates:
            logger.warning("%d of %d turns have one candidate only, and so no preference", single, turns)
        collection = TrajectoryCollection(trajectories=[group for group in groups if group], run_id=run_id)
        logger.info("Built %d pairs from %d turns for run_id: %s", collection.count(), turns, run_id)
        return collection

    def log_progress(self, run_id: str, metrics: dict[str, Any], output_dir: str | None = None) -> None:
        """Append a line to trajectory_builder_<run>.jsonl."""
        folder = output_dir or self.run_config.output_dir
        append_line(os.path.join(folder, f"trajectory_builder_{run_id}.jsonl"), {"run_id": run_id, **metrics})

    def _trajectories(
        self, run_id: str, item: EvalInputItem, pairs: Iterable[tuple[str, PreferencePair]]
    ) -> Iterable[Trajectory]:
        for turn, pair in pairs:
            yield Trajectory(
                episode=[dpo_item(pair)],
                reward=pair.margin if self.config.reward_from_score_diff else pair.chosen.score,
                metadata={
                    "id": item.id,
                    "run_id": run_id,
                    "turn_id": turn,
                    "chosen_score": pair.chosen.score,
                    "rejected_score": pair.rejected.score,
                    "score_diff": pair.margin,
                },
            )


def dpo_item(pair: PreferencePair) -> DPOItem:
    """Return a pair in the toolkit's form."""
    prompt = [OpenAIMessage(role=one["role"], content=one.get("content") or "") for one in pair.prompt]
    return DPOItem(
        prompt=prompt,
        chosen_response=str(pair.chosen.completion["content"]),
        rejected_response=str(pair.rejected.completion["content"]),
    )
