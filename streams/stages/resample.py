"""Trajectories of traffic become requests for more attempts at the same opening, within a budget; per run, and pure.

An opening that comes once has nothing to be compared with. The first trajectory of an opening requests as many attempts
as its group lacks. The same opening again, while the group's window is open, joins the group and requests none.
The budget is charged at once, in the state that commits with the request, so a restart can neither double an attempt
nor exceed the budget. Each attempt is charged all the tokens that it may sample, and the request names that number. An
attempt that ends within the same hour gives back what it did not use. The resampler marks attempts as `resampled`, and
they never request more.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from rollbus.schemas.errors import InvalidRecordError
from rollbus.schemas.ids import content_hash, stable_id
from rollbus.schemas.records.config import RunConfig
from rollbus.schemas.records.groups import ResampleRequested
from rollbus.schemas.records.trajectories import RewardRevised, Trajectory, trained_model
from rollbus.schemas.shares import share_of
from rollbus.schemas.topics import RESAMPLE_REQUESTS, TRAJECTORIES
from rollbus.streams.state.configured_stage import RunStage
from rollbus.streams.state.rows import INT, json_codec
from rollbus.streams.state.stage import Incoming, Outgoing
from rollbus.streams.state.stage_state import StageState, keys_by_kind
from rollbus.streams.state.table import RowCodec, Table

HOUR_MS = 3_600_000
FORGET_MS = 24 * HOUR_MS
"""After so long an attempt will not come back."""
TOKENS_PER_ORIGINAL_TOKEN = 2
"""An attempt may sample this multiple of the tokens of the original, unless the run sets a number."""
_ALL_CALLS_ENDED = ("completed", "max_turns", "max_tokens")
"""Stop reasons after which all calls have ended; after another one a call may still be sampling."""
_PRESENT_HOUR = "now"
"""Key of the one row of the hours' table."""
_OPENING, _ATTEMPT = "p", "o"
"""What a waiting key begins with: the rest is the key of an opening, or the episode of an attempt."""


@dataclass(frozen=True, slots=True)
class Hour:
    """Traffic and spending of one hour of stream time."""

    number: int = -1
    """Hours of stream time since 1970."""
    traffic: int = 0
    """Trajectories that might need attempts."""
    attempts: int = 0
    tokens: int = 0
    """Charged for these attempts, less what those that ended have given back."""


_HOURS: RowCodec[Hour] = json_codec(
    lambda row: [row.number, row.traffic, row.attempts, row.tokens], lambda plain: Hour(*plain)
)


@dataclass(frozen=True, slots=True)
class Charge:
    """Tokens charged in advance for one attempt."""

    tokens: int
    charged_ms: int
    """Stream time of the request."""
    hour: int
    """The hour whose account was charged."""


_CHARGES: RowCodec[Charge] = json_codec(
    lambda row: [row.tokens, row.charged_ms, row.hour], lambda plain: Charge(*plain)
)


class ResampleState(StageState[RunConfig]):
    """The hour's account, openings whose groups are open, and the attempts that have not come back."""

    def __init__(self, config: RunConfig) -> None:
        self.hours: Table[Hour] = Table("hour", _HOURS)
        self.openings: Table[int] = Table("opening", INT)
        """Stream time of an opening's first trajectory."""
        self.owed: Table[Charge] = Table("owed", _CHARGES)
        """By episode, until its trajectory comes."""
        super().__init__(config, self.hours, self.openings, self.owed)

    def waiting_keys(self) -> Iterable[str]:
        """Return openings and owed attempts."""
        return keys_by_kind({_OPENING: self.openings.rows, _ATTEMPT: self.owed.rows})

    def deadline(self, key: str) -> int | None:
        """Return when an opening or an attempt is forgotten."""
        if key[0] == _ATTEMPT:
            charge = self.owed.get(key[1:])
            return None if charge is None else self.clock.since(charge.charged_ms) + FORGET_MS
        first_ms = self.openings.get(key[1:])
        return None if first_ms is None else self.clock.since(first_ms) + self.config.value.grouping.window_ms

    @property
    def hour(self) -> Hour:
        """The account of the present hour."""
        number = self.clock.now_ms // HOUR_MS
        row = self.hours.get(_PRESENT_HOUR)
        return row if row is not None and row.number == number else Hour(number)

    @hour.setter
    def hour(self, hour: Hour) -> None:
        self.hours.put(_PRESENT_HOUR, hour)


class ResampleStage(RunStage[ResampleState]):
    """Asks for the attempts of one run; one instance serves all partitions."""

    configured_as = "resample"
    input = TRAJECTORIES

    def __init__(self, config: RunConfig, *, partitions: int) -> None:
        super().__init__(config)
        self._partitions = partitions

    def new_state(self) -> ResampleState:
        """Return the empty state of a partition."""
        return ResampleState(self._config)

    def step(self, state: ResampleState, incoming: Incoming) -> Iterable[Outgoing]:
        """Take in one trajectory, tick or configuration."""
        state.ensure_rebuilt()
        record = incoming.record
        if isinstance(record, Trajectory):
            return self._request_attempts(state, record, incoming.location.partition)
        if isinstance(record, RewardRevised):
            return ()
        return self.step_control(state, record)

    def pass_time(self, state: ResampleState) -> Iterable[Outgoing]:
        """Forget openings whose window is over, and attempts that will not come back."""
        for key in state.due.due(state.clock.now_ms):
            table: Table[Any] = state.owed if key[0] == _ATTEMPT else state.openings
            table.delete(key[1:])
        return ()

    def _request_attempts(self, state: ResampleState, trajectory: Trajectory, partition: int) -> Iterator[Outgoing]:
        if trajectory.resampled:
            _correct_charge(state, trajectory)
            return
        config = state.config.value
        if not _is_wanted(trajectory, config) or not state.clock.now_ms:
            return  # before the first tick the hour is unknown, and so is the time until which an attempt is useful
        opening, allowance = _hash_opening(trajectory), _allowed_tokens(trajectory, config)
        hour = state.hour = replace(state.hour, traffic=state.hour.traffic + 1)
        if state.openings.get(opening) is not None:
            return
        state.openings.put(opening, state.clock.now_ms)
        state.due.watch(_OPENING + opening)
        count = self._affordable_attempts(hour, config, partition, allowance)
        tokens_each = allowance or 0
        state.hour = replace(hour, attempts=hour.attempts + count, tokens=hour.tokens + count * tokens_each)
        for attempt in range(1, count + 1):
            request = self._request(state, trajectory, attempt, allowance)
            state.owed.put(request.episode_id, Charge(tokens_each, state.clock.now_ms, hour.number))
            state.due.watch(_ATTEMPT + request.episode_id)
            yield Outgoing(RESAMPLE_REQUESTS, request.episode_id, request)

    def _affordable_attempts(self, hour: Hour, config: RunConfig, partition: int, allowance: int | None) -> int:
        """Return how many attempts to request: as many as the group lacks, or none if they would not make a group."""
        budget = config.resample
        if budget is None:
            return 0
        limits = [config.grouping.group_size - 1, self._share_of(budget.attempts_per_hour, partition) - hour.attempts]
        if budget.tokens_per_hour is not None and allowance:
            limits.append((self._share_of(budget.tokens_per_hour, partition) - hour.tokens) // allowance)
        if budget.share is not None:
            limits.append(int(share_of(budget.share, hour.traffic)) - hour.attempts)
        count = min(limits)
        return count if count >= max(1, config.grouping.min_group_size - 1) else 0

    def _share_of(self, whole: int, partition: int) -> int:
        """Return a partition's share of the budget; the shares add up to the whole."""
        return whole // self._partitions + (partition < whole % self._partitions)

    def _request(
        self, state: ResampleState, trajectory: Trajectory, attempt: int, allowance: int | None
    ) -> ResampleRequested:
        now_ms = state.clock.now_ms
        return ResampleRequested(
            episode_id=stable_id("resampled", self.run_id, trajectory.trajectory_id, attempt),
            run_id=self.run_id,
            trajectory_id=trajectory.trajectory_id,
            attempt=attempt,
            task=trajectory.task,
            example_id=trajectory.example_id,
            agent=trajectory.agent,
            labels=trajectory.labels,
            model=trained_model(trajectory),
            messages=trajectory.turns[0].added_messages,
            requested_at_ms=now_ms,
            useful_until_ms=now_ms + state.config.value.grouping.window_ms,
            max_tokens=allowance,
        )


def _is_wanted(trajectory: Trajectory, config: RunConfig) -> bool:
    """Say whether a trajectory needs attempts in this run: trainable, targeted, and in no explicit group."""
    run_filter = config.filter
    return (
        trajectory.trainable
        and trajectory.group_id is None
        and trajectory.parent_episode_id is None
        and bool(trajectory.turns)
        and (not run_filter.tasks or trajectory.task in run_filter.tasks)
        and (not run_filter.agents or trajectory.agent in run_filter.agents)
        and trained_model(trajectory) in (run_filter.models or (config.model,))
        and all(trajectory.labels.get(name) == value for name, value in run_filter.labels.items())
    )


def _hash_opening(trajectory: Trajectory) -> str:
    return content_hash([trajectory.task, trajectory.prompt_hash, trajectory.tools_hash, trained_model(trajectory)])


def _allowed_tokens(trajectory: Trajectory, config: RunConfig) -> int | None:
    """Return how many tokens an attempt may sample; None if the run sets no limit."""
    budget = config.resample
    if budget is None or (budget.tokens_per_attempt is None and budget.tokens_per_hour is None):
        return None
    return budget.tokens_per_attempt or max(
        1, TOKENS_PER_ORIGINAL_TOKEN * sum(filter(None, _count_sampled_tokens(trajectory)))
    )


def _count_sampled_tokens(trajectory: Trajectory) -> list[int | None]:
    """Return how many tokens each turn sampled; None if neither the server nor the tokens give the number.

    Raises InvalidRecordError for tokens of a turn that does not exist; assembly writes no such trajectory.
    """
    counts = [turn.completion_tokens for turn in trajectory.turns]
    for history in trajectory.histories:
        for span in history.spans:
            if not 0 <= span.turn < len(counts):
                raise InvalidRecordError(
                    f"trajectory {trajectory.trajectory_id}: a span of turn {span.turn}, of {len(counts)}"
                )
            counts[span.turn] = max(counts[span.turn] or 0, span.end - span.start)
    return counts


def _correct_charge(state: ResampleState, trajectory: Trajectory) -> None:
    """Correct the charge of an attempt that came back.

    The rest is given back only if its number is certain and the hour that paid is not over. What the attempt sampled
    beyond its limit is charged to the present hour.
    """
    charge = state.owed.get(trajectory.episode_id)
    if charge is None:
        return
    hour, counts_by_turn = state.hour, _count_sampled_tokens(trajectory)
    state.owed.delete(trajectory.episode_id)
    sampled_tokens = sum(filter(None, counts_by_turn))
    has_ended = trajectory.closed_by == "ended" and trajectory.stop_reason in _ALL_CALLS_ENDED
    is_certain = has_ended and bool(counts_by_turn) and None not in counts_by_turn
    if sampled_tokens > charge.tokens or (is_certain and charge.hour == hour.number):
        state.hour = replace(hour, tokens=hour.tokens + sampled_tokens - charge.tokens)
