"""Settings → the stages that a worker hosts, and the configuration that the ticker writes into their inputs."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from rollbus.schemas.errors import ConfigurationError
from rollbus.schemas.records.control import ConfigApplied

if TYPE_CHECKING:
    from rollbus.schemas.records.config import ComponentConfig
    from rollbus.settings import Settings


def all_stages(settings: "Settings") -> list[Any]:
    """Return every stage: the namespace's, then each run's."""
    from rollbus.streams.pipeline import namespace_stages, run_stages
    from rollbus.streams.rewards.registry import load_registry

    registry, ask = load_registry(), judge_endpoint(settings)
    stages = list(namespace_stages(settings.assembly, settings.scoring, registry=registry, ask=ask))
    for run in settings.runs:
        partitions, concurrency = settings.worker.event_partitions, settings.scoring.concurrency
        stages += run_stages(run, registry=registry, ask=ask, partitions=partitions, concurrency=concurrency)
    return stages


async def create_topics(settings: "Settings") -> list[str]:
    """Create every topic that is missing; return their names."""
    from rollbus.streams.kafka.topics_on_broker import ensure_topics

    return await ensure_topics(settings.stream_settings(), all_stages(settings))


def judge_endpoint(settings: "Settings") -> Any:
    """Return the model that judges ask, or None if none is configured."""
    judge = settings.judge
    if judge.base_url is None:
        return None
    from rollbus.streams.rewards.endpoint import Endpoint

    key = judge.api_key.get_secret_value() if judge.api_key else ""
    return Endpoint(judge.base_url, judge.model, api_key=key)


def require_judge_model(settings: "Settings", rewards: "Iterable[ComponentConfig]") -> None:
    """Raise ConfigurationError for a reward that asks a model if none is configured: all its scores would fail."""
    from rollbus.streams.rewards.registry import ASKS_A_MODEL

    asking = [reward.name for reward in rewards if reward.type in ASKS_A_MODEL]
    if asking and settings.judge.base_url is None:
        raise ConfigurationError(
            f"reward {', '.join(asking)} asks a model, but the settings name none; set `judge: base_url:` and `model:`"
        )


def require_keys(settings: "Settings") -> None:
    """Raise ConfigurationError for a source whose reports need a signature that could not be checked."""
    missing = [source for source in settings.assembly.signed_sources if not settings.signing.sources.get(source)]
    if missing:
        raise ConfigurationError(
            f"assembly: signed_sources has {', '.join(missing)}; set the key under `signing: sources:`, or nothing of "
            "these sources would count"
        )


def describe_trust(settings: "Settings") -> list[str]:
    """Say which claims no key proves: a line each for the log."""
    open_to_all = []
    if not settings.stream_settings().signing.is_used:
        open_to_all.append(
            "ticks and configurations are not signed: every producer can write them; set `signing: owner:`"
        )
    named_sources = {source for sources in settings.assembly.reward_sources.values() for source in sources}
    if claimed := sorted(named_sources - set(settings.assembly.signed_sources)):
        open_to_all.append(
            f"sources of rewards are self-declared: every producer can report as {', '.join(claimed)}; give them keys "
            "(`signing: sources:`) and name them in `assembly: signed_sources:`"
        )
    return open_to_all


def rewards_of(settings: "Settings", stages: Sequence[Any]) -> "list[ComponentConfig]":
    """Return the rewards that these stages compute at their start."""
    names = {stage.name for stage in stages}
    judged_runs = (run for run in settings.runs if f"group-scoring.{run.run_id}" in names)
    return [
        *(settings.scoring.rewards if "scoring" in names else ()),
        *(reward for run in judged_runs for reward in run.grouping.rewards),
    ]


def select_stages(settings: "Settings", names: Sequence[str]) -> list[Any]:
    """Return the stages with these names (`assembly`, `grouping.main`), or all; raises ConfigurationError."""
    stages = all_stages(settings)
    unknown = sorted(set(names) - {stage.name for stage in stages})
    if unknown:
        stage_names = ", ".join(stage.name for stage in stages)
        raise ConfigurationError(f"no stage {', '.join(unknown)}; there are: {stage_names}")
    return [stage for stage in stages if not names or stage.name in names]


def stage_configurations(settings: "Settings") -> list[ConfigApplied]:
    """Return the configuration of every stage as the record that puts it into effect."""
    from rollbus.streams.state.ticker import config_applied

    applied = [config_applied("assembly", None, settings.assembly), config_applied("scoring", None, settings.scoring)]
    for run in settings.runs:
        optional = {"group-scoring": bool(run.grouping.rewards), "resample": run.resample is not None}
        optional |= dict.fromkeys(("observing", "delivery"), run.delivery is not None)
        stages = ("grouping", "curriculum", *(stage for stage, asked_for in optional.items() if asked_for))
        applied += [config_applied(stage, run.run_id, run) for stage in stages]
    return applied
