"""The records of a batch → what is asked about each of them.

A revision builds on the trajectory's last score. Where that comes of an earlier record of the batch, the question
waits for the answer about that record, so it does not depend on how records fall into batches. Answers about all other
trajectories are waited for at the same time.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rollbus.schemas.records.config import AssemblyConfig, RewardConfig, ScoringConfig
from rollbus.schemas.records.control import ConfigApplied, Tick
from rollbus.schemas.records.trajectories import Score
from rollbus.streams.stages.scoring.batch_time import BatchTime
from rollbus.streams.state.clock import Clock
from rollbus.streams.state.rows import KeptRecord
from rollbus.streams.state.stage import Incoming
from rollbus.streams.state.stage_state import parse


@dataclass(slots=True, eq=False)
class RewardQuestion:
    """What is asked about one record."""

    incoming: Incoming
    config: ScoringConfig
    """In force at its place."""
    config_hash: str
    rewards: tuple[RewardConfig, ...]
    """The components that are asked."""
    revision: int
    """Of the score that comes of it."""
    arrived_ms: int
    forgotten_ms: float
    """What the batch had forgotten at its place."""
    old: "Score | RewardQuestion | None" = None
    """The score that a revision builds on, or the question that it comes of."""
    score: Score | None = None
    """What comes of the question, where another one builds on it."""
    answered: asyncio.Event | None = None
    """Set once that score is there; None where no question builds on it."""

    async def find_old_score(self) -> Score | None:
        """Return the score that a revision builds on, once it is known."""
        if not isinstance(self.old, RewardQuestion):
            return self.old
        assert self.old.answered is not None
        await self.old.answered.wait()
        return self.old.score


class BatchView:
    """What questions depend on at a place of a batch: the state, and the earlier records of the batch."""

    def __init__(
        self,
        clock: Clock,
        find_row: Callable[[str], KeptRecord[Score] | None],
        *,
        config: ScoringConfig,
        config_hash: str,
        keep_ms: int,
    ) -> None:
        """Begin where the state is: `find_row` returns the last score of a trajectory."""
        self.time = BatchTime(clock)
        self.config, self.config_hash = config, config_hash
        self._find_row, self._keep_ms = find_row, keep_ms
        self._questions: dict[str, RewardQuestion] = {}
        """By trajectory, the last one of the batch."""

    def pass_control(self, record: Any) -> None:
        """Take in a tick or a configuration; raises InvalidRecordError for one that the step refuses too."""
        if isinstance(record, Tick):
            self.time.pass_tick(record, self._keep_ms)
        elif isinstance(record, ConfigApplied) and record.run_id is None:
            if record.stage == "scoring":
                self.config = parse(ScoringConfig, record)
                self.config_hash = self.config.config_hash()
            elif record.stage == "assembly":
                self._keep_ms = parse(AssemblyConfig, record).late_horizon_ms

    def find(self, trajectory_id: str) -> "RewardQuestion | Score | None":
        """Return the last score of a trajectory, or the question that it comes of; None if it is not remembered."""
        question = self._questions.get(trajectory_id)
        if question is not None:
            return question if self.time.remembers(question.arrived_ms, question.forgotten_ms) else None
        row = self._find_row(trajectory_id)
        return None if row is None or not self.time.remembers(row.arrived_ms) else row.get()

    def add(
        self,
        incoming: Incoming,
        rewards: tuple[RewardConfig, ...],
        *,
        arrived_ms: int,
        old: "RewardQuestion | Score | None" = None,
    ) -> RewardQuestion:
        """Return the question about a record, by the configuration that is in force here."""
        if isinstance(old, RewardQuestion) and old.answered is None:
            old.answered = asyncio.Event()
        question = RewardQuestion(
            incoming=incoming,
            config=self.config,
            config_hash=self.config_hash,
            rewards=rewards,
            revision=getattr(incoming.record, "revision", 0),
            arrived_ms=arrived_ms,
            forgotten_ms=self.time.forgotten_ms,
            old=old,
        )
        self._questions[incoming.record.trajectory_id] = question
        return question
