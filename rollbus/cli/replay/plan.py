"""The options of `rollbus replay` → a plan → the replay, with the rewards and the judge of the settings."""

import asyncio
from typing import TYPE_CHECKING

from rollbus import __version__
from rollbus.cli.root import Settings
from rollbus.hosted_stages import judge_endpoint, require_judge_model, require_keys
from rollbus.schemas.errors import ConfigurationError
from rollbus.schemas.wall_clock import wall_clock_ms

if TYPE_CHECKING:
    from rollbus.schemas.records.replays import ReplayFeedback
    from rollbus.streams.replay.kafka.range_run import ProgressCallbacks
    from rollbus.streams.replay.kafka.run import Replay
    from rollbus.streams.replay.plan.plan import ReplayPlan
    from rollbus.streams.rewards.registry import Registry

CHANGED_BY = {
    "--reward": ("scoring",),
    "--rescore": ("scoring", "group-scoring"),
    "--grouping": ("grouping", "group-scoring"),
    "--curriculum": ("curriculum",),
}
"""Option → stages; it has an effect only if one of them is replayed."""


def make_replay(
    settings: Settings,
    plan: "ReplayPlan",
    reward: str | None,
    *,
    watch: "ProgressCallbacks | None" = None,
    follow: asyncio.Event | None = None,
    processes: int | None = 1,
) -> "Replay":
    """Return the replay of a plan, with the reward functions and the judge's model of the settings.

    Raises ConfigurationError if the plan asks a model and the settings name none.
    """
    from rollbus.cli.replay.options import find_registry
    from rollbus.streams.replay.kafka.range_run import ProgressCallbacks
    from rollbus.streams.replay.kafka.run import Replay

    if plan.scores == "rescored":
        require_judge_model(settings, plan.asked_again())
    require_keys(settings)
    registry, ask = find_registry(reward), judge_endpoint(settings)
    return Replay(
        settings.stream_settings(),
        plan,
        registry,
        ask=ask,
        version=__version__,
        watch=watch or ProgressCallbacks(),
        follow=follow,
        processes=processes,
    )


def make_plan(
    settings: Settings,
    *,
    start: str,
    end: str,
    stages: tuple[str, ...],
    reward: str | None,
    grouping: str | None,
    curriculum: str | None,
    feedback: "ReplayFeedback",
    rescore: bool,
    name: str | None,
    allow_missing: bool,
    dry_run: bool,
) -> "ReplayPlan":
    """Return the plan of these options; raises ConfigurationError."""
    from rollbus.cli.replay.options import find_registry, parse_curriculum, parse_grouping, parse_scoring
    from rollbus.streams.replay.plan.plan import ReplayPlan, chain_of, check_name
    from rollbus.streams.replay.plan.range import parse_bound, parse_end

    if name is None and not dry_run:
        raise ConfigurationError("give the replay a name with --as, or look first with --dry-run")
    check_name(name or "dry-run")
    now_ms = wall_clock_ms()
    chain_stages = chain_of(stages)
    changes_by_option = {"--reward": reward, "--grouping": grouping, "--curriculum": curriculum}
    options = [option for option, value in changes_by_option.items() if value is not None]
    _refuse_without_effect(options + ["--rescore"] * rescore, chain_stages)
    plan = ReplayPlan(
        name=name or "dry-run",
        start=parse_bound(start, now_ms=now_ms),
        end=parse_end(end, now_ms=now_ms),
        stages=chain_stages,
        assembly=settings.assembly,
        scoring=settings.scoring,
        runs=settings.runs,
        new_scoring=parse_scoring(reward, find_registry(None))[0] if reward is not None else None,
        new_grouping=parse_grouping(grouping) if grouping is not None else None,
        new_curriculum=parse_curriculum(curriculum) if curriculum is not None else None,
        feedback=feedback,
        scores="rescored" if rescore else "computed" if reward is not None else "recorded",
        allow_missing=allow_missing,
    )
    _require_rewards(plan, find_registry(reward))
    return plan


def _require_rewards(plan: "ReplayPlan", registry: "Registry") -> None:
    """Raise ConfigurationError before anything is read, for rewards and runs that the stages could not work with."""
    from rollbus.streams.rewards.registry import check

    judged_runs = plan.run_configs()  # raises for changes that a run of the settings cannot have
    if "scoring" in plan.stages:
        check(registry, plan.scoring_config.rewards, "trajectory")
    if "group-scoring" in plan.stages:
        check(registry, (reward for run in judged_runs for reward in run.grouping.rewards), "group")


def _refuse_without_effect(options: "list[str]", stages: tuple[str, ...]) -> None:
    """Raise ConfigurationError for an option of a stage that is not replayed."""
    for option in options:
        if not set(CHANGED_BY[option]) & set(stages):
            stage = CHANGED_BY[option][0]
            raise ConfigurationError(
                f"{option} changes {stage}, which is not replayed; leave it out, or add --stage {stage}"
            )
