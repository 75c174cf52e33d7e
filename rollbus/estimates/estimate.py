"""Recorded episodes and a version → what it would have earned, and an `Evaluation` that delivery may decide on.

    log ─recorded▶ scores with rewards ─payload▶ tokens with log-probs ─scoring▶ the version's log-probs ─▶ estimates

An episode counts if everything the model sampled in it is recorded with the log-probs of the distribution that it was
sampled from. What does not count is counted by its reason.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from math import exp, fsum

from rollbus.estimates.divergence import estimate_divergence, refuse_divergence
from rollbus.estimates.episode import Logged, Step
from rollbus.estimates.estimators import BEST, Estimates, Interval, estimate_reward
from rollbus.estimates.sample import Period
from rollbus.estimates.scoring import Scorer
from rollbus.runtime.kafka.payload import KafkaPayload
from rollbus.schemas.ids import content_hash, stable_id
from rollbus.schemas.records.config import ESTIMATES, RunConfig, ScoringConfig
from rollbus.schemas.records.steps import Evaluation
from rollbus.schemas.records.tokens import decode_logprobs, decode_token_ids
from rollbus.schemas.records.trajectories import Score, Trajectory
from rollbus.schemas.wall_clock import wall_clock_ms
from rollbus.streams.stages.delivery.evidence.evaluation_checks import REFUSED
from rollbus.trainer.loop.inspection import inspect

AT_ONCE = 200
"""Trajectories in memory."""
Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Estimated:
    """What a version would have earned."""

    version: int
    estimates: Estimates
    left_out: Counter[str]
    divergence: Interval | None
    """From the version that was asked for, in nats per token."""
    set_hash: str
    """Of the episodes."""
    no_divergence: str = ""
    """Why the log does not say how far it is from there, if that was asked for."""

    def to_evaluation(self, model: str, run_id: str) -> Evaluation:
        """Return the record; a refusal is one, too, so that nothing waits for an estimate that will not come."""
        overlap, metrics = self.estimates.overlap, dict[str, float]()
        metrics |= {name: float(getattr(overlap, name)) for name in ("effective", "mean_weight", "missing", "clipped")}
        metrics["outside"] = float(self.estimates.outside)
        metrics |= _prefixed_metrics("log", self.estimates.log)
        for name, estimate in self.estimates.by_name.items():
            metrics |= _prefixed_metrics(name, estimate.earned)
        if overlap.refusal:
            metrics[REFUSED] = 1.0
        else:
            metrics |= _prefixed_metrics("difference", self.estimates.by_name[BEST].difference)
            if self.divergence is not None:
                metrics |= _prefixed_metrics("kl", self.divergence)
            if self.no_divergence:
                metrics[REFUSED] = 1.0
        return Evaluation(
            evaluation_id=stable_id("evaluation", model, self.version, run_id, ESTIMATES, self.set_hash),
            model=model,
            policy_version=self.version,
            run_id=run_id,
            name=ESTIMATES,
            episodes=overlap.episodes,
            metrics=metrics,
            set_hash=self.set_hash,
            evaluated_at_ms=wall_clock_ms(),
        )


async def estimate_version(
    period: Period,
    run: RunConfig,
    scoring: ScoringConfig,
    version: int,
    *,
    payload: KafkaPayload,
    scorer: Scorer,
    kl_to: int | None = None,
    progress: Progress = lambda done, total: None,
) -> Estimated:
    """Score every episode of the period with a version, and estimate; the reward's bounds are those of `delivery:`."""
    left_out, rows = Counter(period.left_out), list[_Row]()
    for at in range(0, len(period.scores), AT_ONCE):
        progress(at, len(period.scores))
        scores = period.scores[at : at + AT_ONCE]
        trajectories = await payload.fetch([score.location for score in scores])
        usable = list[tuple[Score, Trajectory]]()
        for score in scores:
            trajectory = trajectories.get(score.location)
            reason = "payload lost" if trajectory is None else _unusable(trajectory)
            if trajectory is None or reason:
                left_out[reason] += 1
            else:
                usable.append((score, trajectory))
        rows += await _score(usable, scoring, run.model, version, kl_to, scorer)
    progress(len(period.scores), len(period.scores))
    logged = [row.logged for row in rows]
    low, high = reward_bounds(run, [episode.reward for episode in logged])
    estimates = estimate_reward(logged, low=low, high=high)
    divergence, overlap = None, estimates.overlap
    no_divergence = "" if kl_to is None else refuse_divergence(overlap)
    if kl_to is not None and not no_divergence:
        divergence = estimate_divergence(
            [row.logged.weight for row in rows],
            [row.divergence for row in rows],
            [row.tokens for row in rows],
            overlap=overlap,
        )
    ids = sorted(episode.episode_id for episode in logged)
    return Estimated(version, estimates, left_out, divergence, content_hash(ids), no_divergence)


def reward_bounds(run: RunConfig, rewards: Sequence[float]) -> tuple[float, float]:
    """Return the bounds that the settings declare, or else the least and the greatest reward that came."""
    if run.delivery is not None:
        return run.delivery.reward_low, run.delivery.reward_high
    low, high = min(rewards, default=0.0), max(rewards, default=1.0)
    return (low, high) if low < high else (low, low + 1.0)


@dataclass(frozen=True, slots=True)
class _Row:
    logged: Logged
    divergence: float
    """Log-prob of all sampled tokens under the version − under the other one."""
    tokens: int


def _unusable(trajectory: Trajectory) -> str:
    """Return why an episode says nothing of another version; empty if it does."""
    inspected = inspect(trajectory)
    if inspected.refusal is not None:
        return str(inspected.refusal)
    if any(turn.temperature != 1 for turn in inspected.turns):
        return "temperature"
    if any(not turn.prompt_token_ids for turn in inspected.turns):
        return "no prompt"
    recorded_turns = {span.turn for history in trajectory.histories for span in history.spans}
    return "" if len(recorded_turns) == len(trajectory.turns) else "partly recorded"


async def _score(
    usable: Sequence[tuple[Score, Trajectory]],
    scoring: ScoringConfig,
    model: str,
    version: int,
    kl_to: int | None,
    scorer: Scorer,
) -> list[_Row]:
    sequences = [
        decode_token_ids(history.token_ids)[: history.spans[-1].end].tolist()
        for _, trajectory in usable
        for history in trajectory.histories
        if history.spans
    ]
    other = await scorer.score(f"{model}@{version}", sequences) if sequences else []
    base = await scorer.score(f"{model}@{kl_to}", sequences) if sequences and kl_to is not None else other
    rows, of_version, of_base = list[_Row](), iter(other), iter(base)
    for score, trajectory in usable:
        ratios, divergence, tokens, log_probs = dict[int, float](), 0.0, 0, list[float]()
        answer = blake2b(digest_size=16)
        for history in trajectory.histories:
            if not history.spans:
                continue
            scored, scored_base, recorded_logprobs, at = (
                next(of_version),
                next(of_base),
                decode_logprobs(history.logprobs),
                0,
            )
            for span in history.spans:
                length = span.end - span.start
                new = fsum(scored[span.start - 1 : span.end - 1])
                ratios[span.turn] = ratios.get(span.turn, 0.0) + new - fsum(recorded_logprobs[at : at + length])
                divergence += new - fsum(scored_base[span.start - 1 : span.end - 1])
                log_probs.append(new)
                answer.update(history.token_ids[4 * span.start : 4 * span.end])
                at, tokens = at + length, tokens + length
        single = len(ratios) == 1
        steps = _steps(score, trajectory, scoring, ratios)
        logged = Logged(
            score.episode_id, score.task, score.prompt_hash or score.opening_hash, steps,
            answer.hexdigest() if single else "", exp(fsum(log_probs)) if single else 0.0,
        )  # fmt: skip
        rows.append(_Row(logged, divergence, tokens))
    return rows


def _steps(
    score: Score, trajectory: Trajectory, scoring: ScoringConfig, ratios: Mapping[int, float]
) -> tuple[Step, ...]:
    """Return the turns; a reward that was reported of one is earned there, and the rest of the score at the end."""
    weights = {
        str(reward.options.get("report") or reward.name): reward.weight
        for reward in scoring.rewards
        if reward.type == "feedback" and reward.options.get("combine") in (None, "sum")
    }
    on_episode = {reward.name for reward in trajectory.rewards if reward.turn_event_id is None}
    turn_of = {turn.event_id: index for index, turn in enumerate(trajectory.turns)}
    earned = dict.fromkeys(sorted(ratios), 0.0)
    for reward in trajectory.rewards:
        index = turn_of.get(reward.turn_event_id or "")
        if index in earned and reward.name in weights and reward.name not in on_episode:
            earned[index] += weights[reward.name] * reward.value
    earned[max(earned)] += (score.value or 0.0) - fsum(earned.values())
    return tuple(Step(ratios[index], value) for index, value in earned.items())


def _prefixed_metrics(name: str, interval: Interval) -> dict[str, float]:
    return {name: interval.value, f"{name}_low": interval.low, f"{name}_high": interval.high}
