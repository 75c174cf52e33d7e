"""Trajectories of traffic to requests for more attempts at the same opening, within a budget; per run, and pure.

An opening that comes once has nothing to be compared with. The first trajectory of an opening asks for as many attempts
as its group lacks; the same opening again, while the group's window is open, joins the group and asks for none. What is
asked for is paid for at once, in the state that commits with the request: a restart can neither double an attempt nor
exceed the budget. Each attempt is charged all the tokens that it may sample, and the request says how many; an attempt
that came to its end within the same hour gives back what it left. Whoever makes the attempts marks them as `resampled`,
and they never ask for more.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from rollbus.schemas.config import RunConfig
from rollbus.schemas.control import ConfigApplied, Tick
from rollbus.schemas.errors import InvalidRecordError
from rollbus.schemas.groups import ResampleRequested
from rollbus.schemas.ids import content_hash, stable_id
from rollbus.schemas.topics import RESAMPLE_REQUESTS, TRAJECTORIES
from rollbus.schemas.trajectories import RewardRevised, Trajectory
from rollbus.streams.deadlines import Deadlines
from rollbus.streams.rows import INT, json_codec
from rollbus.streams.stage import Incoming, Outgoing
from rollbus.streams.stage_state import Applied, StageState, misplaced
from rollbus.streams.state import RowCodec, Table

STAGE = "resample"
HOUR_MS = 3_600_000
FORGET_MS = 24 * HOUR_MS
"""After which an attempt does not come back any more."""
ROOM = 2
"""An attempt may sample so many times what the one did that it is compared with, unless the run says how much."""
_WHOLE = ("completed", "max_turns", "max_tokens")
"""How an attempt ends that knows of all its calls; another may have left one behind that was still sampling."""
_NOW = "now"


@dataclass(frozen=True, slots=True)
class Hour:
    """What an hour of stream time has seen and spent."""

    number: int = -1
    traffic: int = 0
    attempts: int = 0
    tokens: int = 0


_HOURS: RowCodec[Hour] = json_codec(
    lambda row: [row.number, row.traffic, row.attempts, row.tokens], lambda plain: Hour(*plain)
)


@dataclass(frozen=True, slots=True)
class Charge:
    """Tokens charged in advance for one attempt."""

    tokens: int
    asked_ms: int
    hour: int = -1
    """Whose account was charged; −1 where an older release did not say."""


_CHARGES: RowCodec[Charge] = json_codec(
    lambda row: [row.tokens, row.asked_ms, row.hour], lambda plain: Charge(*plain), version=2
)


class ResampleState(StageState):
    """The hour's account, openings whose groups are open, and the attempts that have not come back."""

    def __init__(self, config: RunConfig) -> None:
        self.config = Applied(config)
        self.hours: Table[Hour] = Table("hour", _HOURS)
        self.openings: Table[int] = Table("opening", INT)
        """When the first trajectory of an opening came."""
        self.owed: Table[Charge] = Table("owed", _CHARGES)
        """By episode, until its trajectory comes."""
        super().__init__(self.config.table, self.hours, self.openings, self.owed)
        self.due = Deadlines(self._deadline)

    def rebuild(self) -> None:
        """Derive which openings are forgotten when."""
        self.watch_all()

    def watch_all(self) -> None:
        """Look at every deadline anew."""
        tables: dict[str, dict[str, Any]] = {"p": self.openings.rows, "o": self.owed.rows}
        self.due.rebuild(kind + key for kind, rows in tables.items() for key in rows)

    @property
    def hour(self) -> Hour:
        """The account of the present hour."""
        number = self.clock.now_ms // HOUR_MS
        row = self.hours.get(_NOW)
        return row if row is not None and row.number == number else Hour(number)

    @hour.setter
    def hour(self, hour: Hour) -> None:
        self.hours.put(_NOW, hour)

    def _deadline(self, key: str) -> int | None:
        if key[0] == "o":
            charge = self.owed.get(key[1:])
            return None if charge is None else self.clock.since(charge.asked_ms) + FORGET_MS
        first_ms = self.openings.get(key[1:])
        return None if first_ms is None else self.clock.since(first_ms) + self.config.value.grouping.window_ms


class ResampleStage:
    """Asks for the attempts of one run; one instance serves all partitions."""

    input = TRAJECTORIES

    def __init__(self, config: RunConfig, *, partitions: int) -> None:
        self.name = f"{STAGE}.{config.run_id}"
        self._config, self._run_id, self._partitions = config, config.run_id, partitions

    def new_state(self) -> ResampleState:
        """Return the empty state of a partition."""
        return ResampleState(self._config)

    def step(self, state: ResampleState, incoming: Incoming) -> Iterator[Outgoing]:
        """Take in one trajectory, chunk, tick or configuration."""
        state.fresh()
        whole = state.whole(incoming)
        if whole is None:
            return
        record = whole.record
        if isinstance(record, Trajectory):
            yield from self._take(state, record, incoming.location.partition)
        elif isinstance(record, Tick):
            if state.clock.observe(record):
                _pass_time(state)
        elif isinstance(record, ConfigApplied):
            if record.stage == STAGE and record.run_id == self._run_id:
                state.config.apply(record)
                state.watch_all()
        elif not isinstance(record, RewardRevised):
            raise misplaced(record, self.input)

    def _take(self, state: ResampleState, trajectory: Trajectory, partition: int) -> Iterator[Outgoing]:
        if trajectory.resampled:
            _settle(state, trajectory)
            return
        config = state.config.value
        if not _is_wanted(trajectory, config) or not state.clock.now_ms:
            return  # before the first tick nobody knows which hour pays, and until when an attempt is of use
        opening, allowance = _opening(trajectory), _allowance(trajectory, config)
        hour = state.hour = replace(state.hour, traffic=state.hour.traffic + 1)
        if state.openings.get(opening) is not None:
            return
        state.openings.put(opening, state.clock.now_ms)
        state.due.watch("p" + opening)
        count = self._affordable(hour, config, partition, allowance)
        charged = allowance or 0
        state.hour = replace(hour, attempts=hour.attempts + count, tokens=hour.tokens + count * charged)
        for attempt in range(1, count + 1):
            request = self._request(state, trajectory, attempt, allowance)
            state.owed.put(request.episode_id, Charge(charged, state.clock.now_ms, hour.number))
            state.due.watch("o" + request.episode_id)
            yield Outgoing(RESAMPLE_REQUESTS, request.episode_id, request)

    def _affordable(self, hour: Hour, config: RunConfig, partition: int, allowance: int | None) -> int:
        """Return how many attempts are asked for: as many as the group lacks, or none that would not make one."""
        budget = config.resample
        if budget is None:
            return 0
        left = [config.grouping.group_size - 1, self._part(budget.attempts_per_hour, partition) - hour.attempts]
        if budget.tokens_per_hour is not None and allowance:
            left.append((self._part(budget.tokens_per_hour, partition) - hour.tokens) // allowance)
        if budget.share is not None:
            left.append(int(budget.share * hour.traffic) - hour.attempts)
        found = min(left)
        return found if found >= max(1, config.grouping.min_group_size - 1) else 0

    def _part(self, whole: int, partition: int) -> int:
        """Return a partition's part of the budget; the parts add up to the whole."""
        return whole // self._partitions + (partition < whole % self._partitions)

    def _request(
        self, state: ResampleState, trajectory: Trajectory, attempt: int, allowance: int | None
    ) -> ResampleRequested:
        now_ms = state.clock.now_ms
        return ResampleRequested(
            episode_id=stable_id("resampled", self._run_id, trajectory.trajectory_id, attempt),
            run_id=self._run_id,
            trajectory_id=trajectory.trajectory_id,
            attempt=attempt,
            task=trajectory.task,
            example_id=trajectory.example_id,
            agent=trajectory.agent,
            labels=trajectory.labels,
            model=_model(trajectory),
            messages=trajectory.turns[0].added_messages,
            requested_at_ms=now_ms,
            useful_until_ms=now_ms + state.config.value.grouping.window_ms,
            max_tokens=allowance,
        )


def _is_wanted(trajectory: Trajectory, config: RunConfig) -> bool:
    """Say whether a trajectory of traffic stands alone in this run: trainable, targeted, in no explicit group."""
    chosen = config.filter
    return (
        trajectory.trainable
        and trajectory.group_id is None
        and trajectory.parent_episode_id is None
        and bool(trajectory.turns)
        and (not chosen.tasks or trajectory.task in chosen.tasks)
        and (not chosen.agents or trajectory.agent in chosen.agents)
        and _model(trajectory) in (chosen.models or (config.model,))
        and all(trajectory.labels.get(name) == value for name, value in chosen.labels.items())
    )


def _opening(trajectory: Trajectory) -> str:
    return content_hash([trajectory.task, trajectory.prompt_hash, trajectory.tools_hash, _model(trajectory)])


def _model(trajectory: Trajectory) -> str:
    trained = next((turn for turn in trajectory.turns if turn.trainable), trajectory.turns[0])
    return trained.model.partition("@")[0]


def _allowance(trajectory: Trajectory, config: RunConfig) -> int | None:
    """Return how many tokens an attempt may sample; None where the run sets no limit."""
    budget = config.resample
    if budget is None or (budget.tokens_per_attempt is None and budget.tokens_per_hour is None):
        return None
    return budget.tokens_per_attempt or max(1, ROOM * sum(filter(None, _sampled(trajectory))))


def _sampled(trajectory: Trajectory) -> list[int | None]:
    """Return how many tokens each turn sampled; None where neither the server nor the tokens say.

    Raises InvalidRecordError where something was sampled in a turn that is not there; assembly writes no such.
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


def _settle(state: ResampleState, trajectory: Trajectory) -> None:
    """Correct the charge of an attempt that came back.

    What it left over is given back only where it is known for sure and the hour that paid is not over; what it sampled
    beyond, past the client that it was given, is charged to the hour that sees it.
    """
    charged = state.owed.get(trajectory.episode_id)
    if charged is None:
        return
    hour, turns = state.hour, _sampled(trajectory)
    state.owed.delete(trajectory.episode_id)
    sampled = sum(filter(None, turns))
    ended = trajectory.closed_by == "ended" and trajectory.stop_reason in _WHOLE
    certain = ended and bool(turns) and None not in turns
    if sampled > charged.tokens or (certain and charged.hour == hour.number):
        state.hour = replace(hour, tokens=hour.tokens + sampled - charged.tokens)


def _pass_time(state: ResampleState) -> None:
    for key in state.due.due(state.clock.now_ms):
        table: Table[Any] = state.owed if key[0] == "o" else state.openings
        table.delete(key[1:])
    list(state.chunks.expire(state.clock.now_ms - HOUR_MS))  # scoring counts them, of the same topic
