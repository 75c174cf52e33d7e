"""`nat eval` with the telemetry entry: what evaluators say becomes rewards of episodes, and evaluations of versions.

    item's output ─▶ its request, by the toolkit's run id ─▶ its episode, here or in the service behind `--endpoint`
    evaluator's scores ─▶ one reward per episode, and one `Evaluation` per model and version that answered

The toolkit makes the callback before the workflow, so the exporter finds it in the context of the command.
"""

import asyncio
import logging
from collections import defaultdict
from contextvars import ContextVar
from typing import Any

from nat.data_models.intermediate_step import IntermediateStep, IntermediateStepType
from pydantic import BaseModel

from rollbus.nemo import troubles
from rollbus.nemo.runs.run_recording import FLUSH_S
from rollbus.producers import Episode, Recorder
from rollbus.schemas import codec
from rollbus.schemas.ids import content_hash
from rollbus.schemas.records.events import TurnRecorded
from rollbus.schemas.topics import EVALUATIONS
from rollbus.schemas.wall_clock import wall_clock_ms
from rollbus.trainer.ledger.log import evaluation_key
from rollbus.trainer.validation.evaluation import build_evaluation

logger = logging.getLogger(__name__)

METRIC = "score"
"""Of an evaluation; its name is the evaluator's."""
RUN_ID = "workflow_run_id"
"""Where the toolkit says in a workflow's first step which request it is of."""


class EvaluationScores:
    """The toolkit's callback of one evaluation."""

    def __init__(self) -> None:
        self._recorder: Recorder | None = None
        self._episode_by_run: dict[str, Episode] = {}
        self._run_by_item: dict[str, str] = {}
        """Run ids by item id; none where no step says it, or where several items have the id."""
        self._policy_by_episode: dict[str, tuple[str, int]] = {}
        """Model and version of an episode's newest turn; filled in the delivery thread."""

    def watch(self, recorder: Recorder) -> None:
        """Take the recorder of the evaluated workflow."""
        self._recorder, recorder.outbox.on_turn = recorder, self._see_turn

    def begin(self, run_id: str, episode: Episode) -> None:
        """Take an episode that begins."""
        self._episode_by_run[run_id] = episode

    def on_prediction(self, *, item: Any, output: Any) -> None:
        """Find the request of an item that has its output."""
        item_id, run_ids = str(item.id), filter(None, map(_run_id, item.trajectory))
        self._run_by_item[item_id] = "" if item_id in self._run_by_item else next(run_ids, "")

    async def a_on_evaluator_score(self, *, eval_output: Any, evaluator_name: str) -> None:
        """Report an evaluator's scores, and what they are on average."""
        recorder = self._recorder
        if recorder is None:
            return
        await asyncio.to_thread(recorder.flush, FLUSH_S)  # then every turn was seen
        scores: dict[tuple[str, int], dict[str, float]] = defaultdict(dict)
        for item in eval_output.eval_output_items:
            run_id, worth = self._run_by_item.get(str(item.id)), troubles.worth_of(item)
            if not run_id or worth is None:
                continue
            reasoning = None if item.reasoning is None else str(item.reasoning)
            episode = self._episode_by_run.get(run_id)
            target: dict[str, Any] = {"alias": run_id} if episode is None else {"episode": episode}
            recorder.feedback(**target, reward=worth, name=evaluator_name, source="evaluator", comment=reasoning)
            if episode is not None and (policy := self._policy_by_episode.get(episode.id)) is not None:
                scores[policy][str(item.id)] = worth
        number, scored = len(eval_output.eval_output_items), sum(map(len, scores.values()))
        if scored < number:
            logger.warning(
                "rollbus: %d of %d items of evaluator %r count in no evaluation: they have no id of their own, no "
                "score that is a number, or no model call that was recorded here",
                *(number - scored, number, evaluator_name),
            )
        for policy, worth_by_item in scores.items():
            self._submit(recorder, evaluator_name, policy, worth_by_item)

    def _see_turn(self, turn: TurnRecorded, hook: str) -> None:
        self._policy_by_episode[turn.episode_id] = (turn.model, turn.policy_version or 0)

    def _submit(
        self, recorder: Recorder, evaluator: str, policy: tuple[str, int], worth_by_item: dict[str, float]
    ) -> None:
        model, version = policy
        record = build_evaluation(
            {METRIC: list(worth_by_item.values())},
            model=model.removesuffix(f"@{version}"),
            policy_version=version,
            name=evaluator,
            set_hash=content_hash(sorted(worth_by_item)),
            now_ms=wall_clock_ms(),
        )
        data = codec.encode(record)
        recorder.outbox.submit_late(
            EVALUATIONS,
            evaluation_key(record),
            lambda: data,
            episode_id="",
            size=len(data),
            at_ms=record.evaluated_at_ms,
        )


def _run_id(step: IntermediateStep) -> str:
    """Return the request that a step begins; none of another step."""
    metadata = step.payload.metadata
    plain = metadata.model_dump() if isinstance(metadata, BaseModel) else metadata or {}
    is_start = step.event_type is IntermediateStepType.WORKFLOW_START
    return str((plain.get("provided_metadata") or {}).get(RUN_ID) or "") if is_start else ""


EVALUATION: ContextVar[EvaluationScores | None] = ContextVar("rollbus_evaluation", default=None)
"""The evaluation that this command runs; None under `nat run` and `nat serve`."""


def new_scores() -> EvaluationScores:
    """Return the callback of an evaluation that begins."""
    scores = EvaluationScores()
    EVALUATION.set(scores)
    return scores
