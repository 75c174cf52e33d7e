"""An episode becomes a number per metric, and the numbers of all episodes become verdicts.

An episode counts if chance alone chose its version: one version answered all of it, and the draw by its id, at the
share when it began, says the same version. So an operator's own requests for a version do not count, nor what a router
served that had not yet heard of a decision. Nor does what one principal has more of in an arm than chance gives.

No verdict rests on one principal that has less than half of the episodes: it counts if it is also certain without it.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

from rollbus.schemas.records.config import DeliveryConfig, MetricConfig
from rollbus.schemas.records.delivery import EpisodeObserved, is_drawn
from rollbus.streams.stages.delivery.evidence.effect import Effect, Stratum
from rollbus.streams.stages.delivery.evidence.verdict import Goal, Verdict, agree, judge
from rollbus.streams.stages.delivery.evidence.waiting import UNSEEN
from rollbus.streams.stages.delivery.state import DeliveryState

REWARD = "reward"


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric on the scale of [0, 1], and what is tolerated of it."""

    name: str
    low: float
    high: float
    goal: Goal
    margin: float
    tolerance: float
    on_worse: Literal["quarantine", "hold", "notify"]
    min_episodes: int = 0
    """Of the canary, in which it is known, in each step."""

    @property
    def span(self) -> float:
        """The distance between its bounds."""
        return self.high - self.low


@dataclass(frozen=True, slots=True)
class MetricVerdict:
    """A metric's verdict on the canary."""

    metric: Metric
    verdict: Verdict
    rests_on_one: bool
    """Whether it is worse, and not certainly so without one principal."""


def metrics_of(config: DeliveryConfig) -> list[Metric]:
    """Return the reward, then the others in the order of the settings."""
    span = config.reward_high - config.reward_low
    reward = Metric(REWARD, config.reward_low, config.reward_high, "more", config.margin / span, 0.0, "quarantine")
    return [reward, *map(_metric, config.metrics)]


def _metric(config: MetricConfig) -> Metric:
    tolerance = config.tolerance / (config.high - config.low)
    return Metric(
        config.name, config.low, config.high, config.goal, tolerance, tolerance, config.on_worse, config.min_episodes
    )


def count(state: DeliveryState, config: DeliveryConfig, model: str, observed: EpisodeObserved) -> None:
    """Add an episode to the sums, or to the episodes that do not count."""
    head = state.head
    share = head.share_at(observed.first_seen_ms)
    if head.canary is None or not share:
        return
    versions = observed.served_versions
    is_drawn_for_canary = is_drawn(model, head.canary, observed.episode_id, share, head.salt)
    is_canary = versions == (head.canary,)
    unserved = (
        head.unserved + 1 if is_drawn_for_canary and head.canary not in versions else 0 if is_canary else head.unserved
    )
    if versions not in ((head.canary,), (head.serving,)):
        state.head = replace(head, mixed=head.mixed + 1, unserved=unserved)
        return
    if is_canary != is_drawn_for_canary:
        state.head = replace(head, strayed=head.strayed + 1, unserved=unserved)
        return
    most = config.max_share_per_principal
    if not state.take_principal(observed.principal, is_canary=is_canary, share=share, most=most):
        state.head = replace(head, unbalanced=head.unbalanced + 1, unserved=unserved)
        return
    state.head = replace(head, unserved=unserved)
    for metric, value in known_values(config, observed):
        outcome = min(1.0, max(0.0, (value - metric.low) / metric.span))
        if not metric.low <= value <= metric.high:
            outside = state.head.outside + (metric.name == REWARD)
            state.head = replace(state.head, clipped=state.head.clipped + 1, outside=outside)
        key = state.stratum_key(metric.name, observed.task)
        stratum = state.strata.get(key) or Stratum()
        effect = state.effects.get(metric.name) or Effect()
        added = effect.add(outcome, stratum, is_canary=is_canary, share=share)
        state.effects.put(metric.name, added)
        state.add_part(observed.principal, metric.name, effect, added)
        state.strata.put(key, stratum.add(outcome, is_canary=is_canary))


def known_values(config: DeliveryConfig, observed: EpisodeObserved) -> Iterator[tuple[Metric, float]]:
    """Yield what is known of an episode: a reward or a component that is outstanding is left out, and is not 0."""
    values: Mapping[str, float | None] = {
        REWARD: observed.value,
        "rewarded": float(observed.value is not None),
        "failed": float(observed.failed),
        "tokens": float(observed.tokens),
        "latency_ms": observed.latency_ms,
        "tool_errors": float(observed.tool_errors),
    } | {f"component:{name}": value for name, value in observed.components.items()}
    for metric in metrics_of(config):
        value = values.get(metric.name)
        if value is not None and value == value:
            yield metric, value


def is_waited_for(metric: str) -> bool:
    """Say whether a metric may come after its episode."""
    return metric == REWARD or metric.startswith("component:")


def _outstanding_margin(state: DeliveryState, metric: Metric) -> float:
    """Return by how much an interval is wider for rewards that were outstanding when their episodes were counted."""
    return UNSEEN if state.head.wait_ms is not None and is_waited_for(metric.name) else 0.0


def findings(state: DeliveryState, config: DeliveryConfig) -> list[MetricVerdict]:
    """Return each metric's verdict; all of them together are wrong with probability alpha at most."""
    metrics = metrics_of(config)
    return [_find(state, metric, config.alpha / len(metrics)) for metric in metrics]


def _find(state: DeliveryState, metric: Metric, alpha: float) -> MetricVerdict:
    judge_effect = partial(
        judge,
        goal=metric.goal,
        margin=metric.margin,
        tolerance=metric.tolerance,
        alpha=alpha,
        unseen=_outstanding_margin(state, metric),
    )
    of_all = judge_effect(state.effects.get(metric.name) or Effect())
    if of_all == "unknown":
        return MetricVerdict(metric, of_all, rests_on_one=False)
    verdict = agree(of_all, map(judge_effect, state.effects_without_one(metric.name)))
    return MetricVerdict(metric, verdict, rests_on_one=of_all == "worse" and verdict == "unknown")


def known_episodes(state: DeliveryState) -> dict[str, int]:
    """Return in how many of the canary's episodes that count each metric is known."""
    return {name: effect.canary for name, effect in state.effects.rows.items()}


def missing_metrics(state: DeliveryState, config: DeliveryConfig) -> list[Metric]:
    """Return the metrics that are known in too few of the canary's episodes of this step."""
    episodes, before = known_episodes(state), dict(state.head.known_before)
    return [
        metric
        for metric in metrics_of(config)
        if episodes.get(metric.name, 0) - before.get(metric.name, 0) < metric.min_episodes
    ]


def rewarded_episodes(state: DeliveryState) -> int:
    """Return how many of the canary's episodes count, with a reward."""
    effect = state.effects.get(REWARD)
    return 0 if effect is None else effect.canary


def numbers(state: DeliveryState, config: DeliveryConfig) -> dict[str, float]:
    """Return what a decision is made on, in the metrics' own units."""
    metrics, head = metrics_of(config), state.head
    measures: dict[str, float] = {
        name: getattr(head, name) for name in ("mixed", "strayed", "unbalanced", "clipped", "outside", "late")
    }
    measures["wait_ms"] = config.wait_ms if head.wait_ms is None else head.wait_ms
    for metric in metrics:
        if effect := state.effects.get(metric.name):
            low, high = effect.interval(config.alpha / len(metrics))
            unseen = _outstanding_margin(state, metric)
            measures |= {
                f"{metric.name}.effect": effect.mean * metric.span,
                f"{metric.name}.low": max(-1.0, low - unseen) * metric.span,
                f"{metric.name}.high": min(1.0, high + unseen) * metric.span,
                f"{metric.name}.canary_episodes": effect.canary,
                f"{metric.name}.serving_episodes": effect.serving,
            }
    return measures
