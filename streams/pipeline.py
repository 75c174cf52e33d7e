"""The stages that a worker runs: those of the namespace, and those of each run."""

from typing import Any

from rollbus.schemas.records.config import CONCURRENCY, AssemblyConfig, RunConfig, ScoringConfig
from rollbus.streams.rewards.contract import Ask
from rollbus.streams.rewards.registry import Registry, load_registry
from rollbus.streams.stages.alias import AliasStage
from rollbus.streams.stages.assembly.stage import AssemblyStage
from rollbus.streams.stages.curriculum.stage import CurriculumStage
from rollbus.streams.stages.delivery.observing import ObservingStage
from rollbus.streams.stages.delivery.stage import DeliveryStage
from rollbus.streams.stages.grouping.stage import GroupingStage
from rollbus.streams.stages.resample import ResampleStage
from rollbus.streams.stages.scoring.group_scoring import GroupScoringStage
from rollbus.streams.stages.scoring.stage import ScoringStage
from rollbus.streams.state.stage import EffectsStage, PureAsEffects, Stage

AnyStage = EffectsStage[Any, Any]


def namespace_stages(
    assembly: AssemblyConfig, scoring: ScoringConfig, *, registry: Registry | None = None, ask: Ask | None = None
) -> list[AnyStage]:
    """Return alias, assembly and scoring; raises ConfigurationError for a reward that is not registered.

    Without a registry the rewards are the built-in ones and those of installed packages.
    """
    pure: list[Stage[Any]] = [AliasStage(assembly), AssemblyStage(assembly)]
    scores = ScoringStage(scoring, keep_ms=assembly.late_horizon_ms, registry=registry or load_registry(), ask=ask)
    return [*map(PureAsEffects, pure), scores]


def run_stages(
    run: RunConfig,
    *,
    registry: Registry | None = None,
    ask: Ask | None = None,
    partitions: int = 1,
    concurrency: int = CONCURRENCY,
) -> list[AnyStage]:
    """Return grouping and curriculum of a run, and group scoring, resampling and delivery if the run asks for them.

    `partitions` of the event topics share the budget of resampling; `concurrency` bounds the calls of reward functions
    over groups. Raises ConfigurationError for one that is not registered.
    """
    grouping, curriculum = PureAsEffects(GroupingStage(run)), PureAsEffects(CurriculumStage(run))
    stages: list[AnyStage] = [grouping]
    if run.grouping.rewards:
        stages.append(GroupScoringStage(run, registry=registry or load_registry(), ask=ask, concurrency=concurrency))
    stages.append(curriculum)
    if run.resample is not None:
        stages.append(PureAsEffects(ResampleStage(run, partitions=partitions)))
    if run.delivery is not None:
        stages += [PureAsEffects(ObservingStage(run)), PureAsEffects(DeliveryStage(run))]
    return stages
