"""What replay and live worker both do here: the same stages under the same configuration, and what they made."""

from typing import Any

from benchmarks.streams.ours import TimedStage
from rollbus.schemas.records.config import AssemblyConfig, BatchingConfig, RunConfig, ScoringConfig
from rollbus.streams.pipeline import namespace_stages, run_stages
from rollbus.streams.replay.plan.plan import CHAIN

CountsByStage = dict[str, int]
"""Records that each stage emitted, and the batches among them."""

ASSEMBLY, SCORING = AssemblyConfig(), ScoringConfig()
RUN = RunConfig(batching=BatchingConfig(batches_ahead=1_000_000))
"""Nobody trains: a replay answers each batch itself, and the live worker never has to wait for an answer."""


def live_stages(what: str, first: TimedStage) -> list[Any]:
    """Return the worker's stages: `assembly`, or those that a whole replay runs too."""
    if what == "assembly":
        return [first]
    others = [*namespace_stages(ASSEMBLY, SCORING), *run_stages(RUN)]
    return [first, *(stage for stage in others if stage.name.partition(".")[0] in CHAIN[1:])]
