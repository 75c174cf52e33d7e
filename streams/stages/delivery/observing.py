"""Scores of all partitions become observations in the one order that delivery decides by."""

from collections.abc import Iterable

from rollbus.schemas.record_makers import copier
from rollbus.schemas.records.config import RunConfig
from rollbus.schemas.records.delivery import EpisodeObserved
from rollbus.schemas.records.trajectories import Score
from rollbus.schemas.topics import DELIVERY_LOG, SCORES
from rollbus.streams.state.configured_stage import RunStage
from rollbus.streams.state.stage import Incoming, Outgoing
from rollbus.streams.state.stage_state import StageState

FAILURE_REASONS = frozenset({"error", "timeout"})
"""Stop reasons of an episode that failed."""
_observed = copier(Score, EpisodeObserved, "run_id", "tokens", "failed")


class ObservingState(StageState[RunConfig]):
    """Time and configuration alone: an observation depends on its score only."""

    def waiting_keys(self) -> Iterable[str]:
        """Nothing waits."""
        return ()

    def deadline(self, key: str) -> int | None:
        """Nothing is ever due."""
        return None


class ObservingStage(RunStage[ObservingState]):
    """Writes what delivery needs of each score of one run's model; delivery absorbs what comes twice."""

    configured_as = "observing"
    input = SCORES

    def new_state(self) -> ObservingState:
        """Return the empty state of a partition."""
        return ObservingState(self._config)

    def step(self, state: ObservingState, incoming: Incoming) -> Iterable[Outgoing]:
        """Take in one score, tick or configuration."""
        state.ensure_rebuilt()
        record = incoming.record
        if not isinstance(record, Score):
            return self.step_control(state, record)
        config = state.config.value
        if config.delivery is None or record.model != config.model or record.resampled or not record.served_versions:
            return ()
        has_failed = record.outcome == "failed" or record.stop_reason in FAILURE_REASONS
        observed = _observed(record, run_id=self.run_id, tokens=record.sampled_tokens, failed=has_failed)
        return [Outgoing(DELIVERY_LOG, self.run_id, observed)]

    def pass_time(self, state: ObservingState) -> Iterable[Outgoing]:
        """Nothing waits for time."""
        return ()
