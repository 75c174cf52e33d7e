"""The log since a time → a sample of its episodes with their rewards, and when rewards came.

The sample is drawn by a hash of the ids: every reader draws the same one, and memory does not grow with the log. Time
is the broker's clock, as it is in the records, so a machine whose clock is wrong reads the same.
"""

import heapq
from collections import Counter
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from hashlib import blake2b

from rollbus.schemas.codec import decode_if
from rollbus.schemas.records.groups import TrainingBatch
from rollbus.schemas.records.trajectories import Score
from rollbus.schemas.topics import BATCHES, SCORES
from rollbus.streams.kafka.settings import StreamSettings
from rollbus.streams.replay.kafka.source import read_records, read_whole
from rollbus.streams.replay.plan.range_on_broker import starts_of
from rollbus.streams.stages.delivery.evidence.delays import Arrived, fit_delays


@dataclass(slots=True)
class ScoredAt:
    """What the log says of one trajectory."""

    score: Score
    first_ms: int
    """When its first score came, by the broker's clock."""
    known_ms: int | None = None
    """When its first reward came."""

    def add(self, score: Score, at_ms: int) -> None:
        """Take in a revision."""
        if score.revision >= self.score.revision:
            self.score = score
        if score.value is not None and self.known_ms is None:
            self.known_ms = at_ms


@dataclass(frozen=True, slots=True)
class Period:
    """A sample of the episodes of a model."""

    scores: tuple[Score, ...]
    """Each with a reward."""
    left_out: Counter[str]
    """By reason: episodes of the sample that say nothing."""
    delays: list[Arrived] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Rescored:
    """A replay's answer to the same episodes: another reward, and which ones another curriculum admitted."""

    values: Mapping[str, float | None]
    """By episode id."""
    admitted: frozenset[str] | None = None
    """Episode ids; None asks for all."""


async def read_period(
    settings: StreamSettings,
    model: str,
    *,
    since_ms: int,
    most: int,
    wait_ms: int,
    rescored: Rescored | None = None,
) -> Period:
    """Return `most` episodes at most; an episode counts once it is `wait_ms` old, with the reward it has by now."""
    sample, end_ms = _Sample(most), 0
    async for score, at_ms in _read_scores(settings, since_ms):
        end_ms = max(end_ms, at_ms)
        if score is not None and score.model == model and not score.resampled and score.served_versions:
            sample.add(score, at_ms)
    rated_scores, left_out = list[Score](), Counter[str]()
    for scored in sample.rows.values():
        rated = scored.score if rescored is None else _rescore(scored.score, rescored)
        if isinstance(rated, str):
            left_out[rated] += 1
        elif reason := _left_out(rated, end_ms - scored.first_ms, wait_ms):
            left_out[reason] += 1
        else:
            rated_scores.append(rated)
    return Period(tuple(rated_scores), left_out, _fit(sample.rows.values(), end_ms))


async def read_rescored(replay: StreamSettings, run_id: str, *, only_admitted: bool) -> Rescored:
    """Read a replay's scores, and the groups that its curriculum admitted; `replay` has its namespace."""
    newest: dict[str, Score] = {}
    async with aclosing(read_records(replay, SCORES, Score)) as scores:
        async for score in scores:
            newest_score = newest.get(score.episode_id)
            if newest_score is None or score.revision >= newest_score.revision:
                newest[score.episode_id] = score
    values = {episode: score.value for episode, score in newest.items()}
    if not only_admitted:
        return Rescored(values)
    admitted = set[str]()
    async with aclosing(read_records(replay, BATCHES, TrainingBatch, partitions=1)) as batches:
        async for batch in batches:
            if batch.run_id == run_id:
                admitted |= {member.episode_id for group in batch.groups for member in group.members}
    return Rescored(values, frozenset(admitted))


class _Sample:
    """The trajectories with the smallest hashes."""

    def __init__(self, most: int) -> None:
        self.rows: dict[str, ScoredAt] = {}
        self._most = most
        self._largest: list[tuple[int, str]] = []

    def add(self, score: Score, at_ms: int) -> None:
        key = score.trajectory_id
        if (scored := self.rows.get(key)) is not None:
            scored.add(score, at_ms)
            return
        draw_number = int.from_bytes(blake2b(key.encode(), digest_size=8).digest())
        if len(self.rows) >= self._most and draw_number >= -self._largest[0][0]:
            return
        self.rows[key] = ScoredAt(score, at_ms, at_ms if score.value is not None else None)
        heapq.heappush(self._largest, (-draw_number, key))
        if len(self.rows) > self._most:
            del self.rows[heapq.heappop(self._largest)[1]]


async def _read_scores(settings: StreamSettings, since_ms: int) -> AsyncIterator[tuple[Score | None, int]]:
    """Yield each score, and None for a tick or a configuration, which say how late it is."""
    starts = await starts_of(settings, SCORES, since_ms)
    async with aclosing(read_whole(settings, SCORES, starts=starts)) as records:
        async for record in records:
            if record.timestamp >= since_ms:
                yield decode_if(record.value, Score), record.timestamp


def _rescore(score: Score, rescored: Rescored) -> Score | str:
    """Return the score with the replay's reward, or why it says nothing."""
    if score.episode_id not in rescored.values:
        return "not in the replay"
    if rescored.admitted is not None and score.episode_id not in rescored.admitted:
        return "not admitted by the replay's curriculum"
    value = rescored.values[score.episode_id]
    return replace(score, value=value, outcome="missing" if value is None else "scored")


def _left_out(score: Score, age_ms: int, wait_ms: int) -> str:
    if score.excluded:
        return "excluded"
    if age_ms < wait_ms:
        return "younger than wait_ms"
    if score.value is None:
        return "reward outstanding" if score.outcome == "missing" else "scoring failed"
    return ""


def _fit(rows: Collection[ScoredAt], end_ms: int) -> list[Arrived]:
    came = Counter(scored.known_ms - scored.first_ms for scored in rows if scored.known_ms is not None)
    return fit_delays(came, Counter(end_ms - scored.first_ms for scored in rows if scored.known_ms is None))
