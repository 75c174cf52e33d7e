"""A user's own TrajectoryBuilder on the log: what it runs is recorded, and what it finalizes is an epoch of the run.

    start_run ─▶ the builder's evaluations, recorded ─▶ finalize ─▶ episodes on the log ─▶ groups ─▶ collection

An epoch that an earlier process closed is neither started nor finalized again.
"""

from itertools import count
from typing import Any

from nat.data_models.evaluate_runtime import EvaluationRunOutput
from nat.data_models.finetuning import TrajectoryCollection
from nat.finetuning.interfaces.trajectory_builder import TrajectoryBuilder

from rollbus.nemo import troubles
from rollbus.nemo.bus.publish_trajectories import has_pairs
from rollbus.nemo.evaluation import evaluate
from rollbus.nemo.runs.run import Run
from rollbus.nemo.runs.run_recording import Tally


def put_on_log(builder: TrajectoryBuilder, run: Run) -> None:
    """Record what a user's own builder runs, put what it finalizes on the log, and build no closed epoch again."""

    async def run_eval() -> EvaluationRunOutput:
        return await evaluate(builder.run_config, run)

    if type(builder).run_eval is TrajectoryBuilder.run_eval:
        builder.run_eval = run_eval  # type: ignore[method-assign]
    start_run, finalize, epochs = builder.start_run, builder.finalize, count()
    building: dict[str, int] = {}

    async def start_open(run_id: str, meta: dict[str, Any] | None = None) -> None:
        number = next(epochs)
        epoch = building[run_id] = int((meta or {}).get("epoch", number))
        run.tally = Tally()
        if run.closed_epoch(epoch) is None:
            await start_run(run_id, meta)

    async def publish_built(run_id: str, meta: dict[str, Any] | None = None) -> TrajectoryCollection:
        epoch = building.pop(run_id, None)
        if epoch is not None and (closed_epoch := run.closed_epoch(epoch)) is not None:
            return closed_epoch
        collection = await finalize(run_id, meta)
        troubles.require_type(collection, TrajectoryCollection, f"{type(builder).__name__}.finalize")
        epoch = int((meta or {}).get("epoch", epoch or 0))
        if not has_pairs(collection):
            run.built_epochs.add(epoch)
        return await run.publish(collection, epoch)

    builder.start_run, builder.finalize = start_open, publish_built  # type: ignore[method-assign]
