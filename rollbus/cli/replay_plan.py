"""The options of `rollbus replay` → a plan, and an attempt at it with everything that the settings name."""

import time
from typing import TYPE_CHECKING, Any

from rollbus import __version__
from rollbus.cli.stages import judge_endpoint, refuse_unaskable
from rollbus.schemas.errors import ConfigurationError

if TYPE_CHECKING:
    from rollbus.settings import Settings
    from rollbus.streams.replay.plan import ReplayPlan
    from rollbus.streams.replay.run_kafka import Replay

CHANGED_BY = {
    "--reward": ("scoring",),
    "--score-anew": ("scoring", "group-scoring"),
    "--grouping": ("grouping", "group-scoring"),
    "--curriculum": ("curriculum",),
}
"""Stages of which at least one must be replayed for an option to say anything."""


def replay_of(settings: "Settings", plan: "ReplayPlan", reward: str | None, **options: Any) -> "Replay":
    """Return an attempt at a plan, with the reward functions and the judge's model that the settings name.

    Raises ConfigurationError where it is to ask a model and they name none.
    """
    from rollbus.streams.replay.run_kafka import Replay

    if plan.scores == "anew":
        refuse_unaskable(settings, plan.asked_anew())
    ask = judge_endpoint(settings)
    registry = registry_for(reward)
    return Replay(settings.stream_settings(), plan, registry, ask=ask, version=__version__, **options)


def registry_for(reward: str | None) -> Any:
    """Return the reward functions of a replay."""
    from rollbus.cli.replay_options import registry_of

    return registry_of(reward)


def plan_of(
    settings: "Settings",
    *,
    start: str,
    end: str,
    stages: tuple[str, ...],
    reward: str | None,
    grouping: str | None,
    curriculum: str | None,
    rewards: Any,
    score_anew: bool,
    name: str | None,
    allow_missing: bool,
    dry_run: bool,
) -> "ReplayPlan":
    """Return the plan that the options say; raises ConfigurationError."""
    from rollbus.cli.replay_options import curriculum_of, grouping_of, scoring_of
    from rollbus.streams.replay.plan import ReplayPlan, chain_of, check_name
    from rollbus.streams.replay.range import parse_bound

    if name is None and not dry_run:
        raise ConfigurationError("give the replay a name with --as, or look first with --dry-run")
    check_name(name or "dry-run")
    now_ms = int(time.time() * 1000)
    chosen = chain_of(stages)
    changed = {"--reward": reward, "--score-anew": score_anew, "--grouping": grouping, "--curriculum": curriculum}
    _refuse_idle([option for option, given in changed.items() if given], chosen)
    plan = ReplayPlan(
        name=name or "dry-run",
        start=parse_bound(start, now_ms=now_ms),
        end=parse_bound(end, now_ms=now_ms),
        stages=chosen,
        assembly=settings.assembly,
        scoring=settings.scoring,
        runs=settings.runs,
        new_scoring=scoring_of(reward, registry_for(None))[0] if reward else None,
        new_grouping=grouping_of(grouping) if grouping else None,
        new_curriculum=curriculum_of(curriculum) if curriculum else None,
        rewards=rewards,
        scores="anew" if score_anew else "computed" if reward else "recorded",
        allow_missing=allow_missing,
    )
    plan.run_configs()  # refuses what a run of the settings cannot have
    return plan


def _refuse_idle(options: "list[str]", stages: tuple[str, ...]) -> None:
    """Raise ConfigurationError for an option of a stage that is not replayed: it would do nothing, and not say so."""
    for option in options:
        if not set(CHANGED_BY[option]) & set(stages):
            stage = CHANGED_BY[option][0]
            raise ConfigurationError(
                f"{option} changes {stage}, which is not replayed; leave it out, or add --stage {stage}"
            )
