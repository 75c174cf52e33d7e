"""Counts of a run's episodes → its funnel: each stage with its number, what is lost there, and the one thing to do.

An episode has reached a stage, waits for the next one, or was lost before it: so the numbers add up to the episodes
that began. Nothing can train where all that could pass a stage were lost before it. What users did next is a line of
its own.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

from rollbus.health.funnel.forecast import Forecast, forecast_step, hold_step
from rollbus.health.funnel.losses import agree, explain_loss
from rollbus.health.funnel.notices import Notice, find_notices, find_reports_astray
from rollbus.health.funnel.numbers import (
    EPISODES,
    IN_STEP,
    STAGES,
    EpisodeCount,
    FunnelNumbers,
    FunnelSettings,
    NextTurnCount,
)
from rollbus.runtime.health.alarms.problem import say_duration
from rollbus.schemas.records.drops import DropReason

HOUR_MS = 3_600_000


@dataclass(frozen=True, slots=True)
class LostEpisodes:
    """Episodes that one reason kept from a stage."""

    reason: str
    episodes: int
    what: str
    remedy: str


@dataclass(frozen=True, slots=True)
class FunnelStage:
    """One stage of the funnel."""

    name: str
    episodes: int
    """That reached it."""
    waiting: int
    """That reached the stage before, and may still reach this one."""
    lost: tuple[LostEpisodes, ...]
    """The most frequent reason first."""

    @property
    def lost_episodes(self) -> int:
        """Return how many were lost before this stage."""
        return sum(loss.episodes for loss in self.lost)


@dataclass(frozen=True, slots=True)
class UnassembledEpisodes:
    """Episodes that have begun and are not assembled."""

    episodes: int
    oldest_ms: int
    """When the oldest began, by the broker's clock."""
    sentence: str


@dataclass(frozen=True, slots=True)
class Funnel:
    """What became of a run's episodes."""

    run_id: str
    model: str
    since_ms: int
    stages: tuple[FunnelStage, ...] = ()
    unassembled: UnassembledEpisodes | None = None
    notices: tuple[Notice, ...] = ()
    next_turns: str = ""
    """What users did next, in a line; empty if no component reads it."""
    forecast: Forecast | None = None
    blocked_at: str | None = None
    """The stage that no episode reaches although all that could were tried."""
    verdict: str = ""
    """One line."""
    newest_episode_ms: int = 0
    """When the newest episode of all began, by the broker's clock; 0 before the first."""
    owed_since_ms: int = 0
    """When the first episode since the run's newest step began; 0 if none has."""
    trouble: str | None = None
    """Why there are no numbers; None if there are."""

    @property
    def is_blocked(self) -> bool:
        """Whether nothing can train."""
        return self.blocked_at is not None


def draw_funnel(numbers: FunnelNumbers, settings: FunnelSettings) -> Funnel:
    """Return the funnel of a run."""
    notices = find_notices(numbers, settings)
    stages = tuple(_draw_stage(number, numbers.episodes) for number in range(len(STAGES)))
    blocked_at = _find_block(stages)
    forecast = forecast_step(numbers, settings) if numbers.episodes or numbers.run.groups else None
    return Funnel(
        run_id=settings.run.run_id,
        model=settings.run.model,
        since_ms=numbers.since_ms,
        stages=stages,
        unassembled=_find_unassembled(numbers, settings),
        notices=notices,
        next_turns=describe_next_turns(numbers.next_turns),
        forecast=forecast,
        blocked_at=None if blocked_at is None else blocked_at.name,
        verdict=_give_verdict(numbers, stages, blocked_at, forecast, notices),
        newest_episode_ms=numbers.run.newest_episode_ms,
        owed_since_ms=numbers.run.owed_since_ms,
    )


def hold_funnel(funnel: Funnel, why: str) -> Funnel:
    """Return the funnel of a run whose next step waits for `why`; unchanged if nothing was forecast, or it is held."""
    forecast = funnel.forecast
    if forecast is None or forecast.held:
        return funnel
    held = hold_step(forecast, why)
    verdict = funnel.verdict.removesuffix(forecast.sentence)
    return replace(funnel, forecast=held, verdict=verdict + held.sentence if verdict != funnel.verdict else verdict)


def without_numbers(settings: FunnelSettings, trouble: str) -> Funnel:
    """Return the funnel of a run of which nothing is counted, and why."""
    return Funnel(settings.run.run_id, settings.run.model, 0, verdict=f"not known: {trouble}", trouble=trouble)


def _draw_stage(number: int, counts: Sequence[EpisodeCount]) -> FunnelStage:
    episodes_by_loss: dict[tuple[str, str], int] = defaultdict(int)
    reached = waiting = 0
    for count in counts:
        reached_stage = _stage_reached(count)
        if reached_stage >= number:
            reached += count.episodes
        elif reached_stage == number - 1 and count.dropped_by:
            episodes_by_loss[count.dropped_by, count.detail] += count.episodes
        elif reached_stage == number - 1:
            waiting += count.episodes
    losses = []
    for (reason, detail), episodes in sorted(episodes_by_loss.items(), key=lambda item: (-item[1], item[0])):
        loss = explain_loss(reason, detail)
        name = detail if detail and reason == DropReason.UNTRAINABLE else reason
        losses.append(LostEpisodes(name, episodes, agree(loss.what, episodes), loss.remedy))
    return FunnelStage(STAGES[number], reached, waiting, tuple(losses))


def _stage_reached(count: EpisodeCount) -> int:
    """Return the last stage that episodes reached: of lost ones, the one before the stage that their reason is of."""
    if not count.dropped_by:
        return count.reached
    return max(EPISODES, explain_loss(count.dropped_by, count.detail).stage - 1)


def _find_block(stages: Sequence[FunnelStage]) -> FunnelStage | None:
    """Return the first stage that no episode has reached, although more were lost before it than may still reach it."""
    waiting = 0
    for stage in stages[1:]:
        waiting += stage.waiting
        if not stage.episodes:
            return stage if stage.lost_episodes > waiting else None
    return None


def _find_unassembled(numbers: FunnelNumbers, settings: FunnelSettings) -> UnassembledEpisodes | None:
    counts = [count for count in numbers.episodes if not count.is_assembled and not count.dropped_by]
    if not counts:
        return None
    oldest_ms, episodes = min(count.oldest_ms for count in counts), sum(count.episodes for count in counts)
    paused, assembly = sum(count.paused for count in counts), settings.assembly
    sentence = (
        f"{episodes} {'is' if episodes == 1 else 'are'} open, the oldest for "
        f"{say_duration(max(0, numbers.now_ms - oldest_ms))}; one without an event for "
        f"{say_duration(assembly.inactivity_ms)} is given up"
    )
    if paused:
        sentence += (
            f", and of {paused} that {'has' if paused == 1 else 'have'} paused after {say_duration(assembly.pause_ms)}"
        )
    return UnassembledEpisodes(episodes, oldest_ms, sentence)


def _give_verdict(
    numbers: FunnelNumbers,
    stages: Sequence[FunnelStage],
    blocked_at: FunnelStage | None,
    forecast: Forecast | None,
    notices: Sequence[Notice],
) -> str:
    began, newest_ms = stages[EPISODES].episodes, numbers.run.newest_episode_ms
    hours = max(1, round((numbers.now_ms - numbers.since_ms) / HOUR_MS))
    if not began and not newest_ms:
        return "no episode has begun yet: record one, as in README's snippet"
    if not began:
        age = say_duration(numbers.now_ms - newest_ms)
        return f"no episode has begun in the last {hours} hours; the newest began {age} ago"
    if blocked_at is not None:
        loss = blocked_at.lost[0]
        astray = find_reports_astray(notices) if loss.reason == DropReason.SCORE_MISSING else None
        why, remedy = (f": {astray.what}", astray.remedy) if astray else ("", loss.remedy)
        return (
            f"nothing can train: {loss.episodes} of {began} episodes {loss.what}, and none is {blocked_at.name}{why} → "
            f"{remedy}"
        )
    trained_episodes = stages[IN_STEP].episodes
    sentence = "" if forecast is None else f"; {forecast.sentence}"
    if forecast is not None and forecast.unrewarded and (astray := find_reports_astray(notices)):
        sentence += f", and {astray.what} → {astray.remedy}"
    return f"{trained_episodes} of {began} episodes are trained{sentence}"


def describe_next_turns(counts: Sequence[NextTurnCount]) -> str:
    """Return the line; empty if no user did anything that a component reads."""
    signals = [count for count in counts if count.kind == "signal"]
    turns = sum(count.turns for count in signals)
    if not turns:
        return ""
    clear = [f"{count.turns - count.matching} {count.name}" for count in signals if count.turns > count.matching]
    unclear = sum(count.matching for count in signals)
    parts = [f"users answered {turns} {'turn' if turns == 1 else 'turns'}: {', '.join([*clear, f'{unclear} unclear'])}"]
    parts += [f"{count.name} agree on {count.matching} of {count.turns}" for count in counts if count.kind == "pair"]
    parts += [
        f"{count.name} agrees with explicit verdicts on {count.matching} of {count.turns}"
        for count in counts
        if count.kind == "verdict"
    ]
    return "; ".join(parts)
