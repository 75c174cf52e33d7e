"""The stages that a worker runs: those of the namespace, and those of each run."""

from typing import Any

from rollbus.schemas.config import AssemblyConfig, RunConfig, ScoringConfig
from rollbus.streams.alias import AliasStage
from rollbus.streams.assembly import AssemblyStage
from rollbus.streams.curriculum import CurriculumStage
from rollbus.streams.group_scoring import GroupScoringStage
from rollbus.streams.grouping import GroupingStage
from rollbus.streams.rewards.contract import Ask
from rollbus.streams.rewards.registry import Registry, installed
from rollbus.streams.scoring import ScoringStage
from rollbus.streams.stage import EffectsStage, PureAsEffects, Stage

AnyStage = EffectsStage[Any, Any]


def namespace_stages(
    assembly: AssemblyConfig, scoring: ScoringConfig, *, registry: Registry | None = None, ask: Ask | None = None
) -> list[AnyStage]:
    """Return alias, assembly and scoring; raises ConfigurationError for a reward that nobody registered.

    Without a registry the rewards are the built-in ones and those of installed packages.
    """
    pure: list[Stage[Any]] = [AliasStage(assembly), AssemblyStage(assembly)]
    scores = ScoringStage(scoring, keep_ms=assembly.late_horizon_ms, registry=registry or installed(), ask=ask)
    return [*map(PureAsEffects, pure), scores]


def run_stages(run: RunConfig, *, registry: Registry | None = None, ask: Ask | None = None) -> list[AnyStage]:
    """Return grouping and curriculum of a run, and between them group scoring where the run asks for it.

    Raises ConfigurationError for a reward over groups that nobody registered.
    """
    grouping, curriculum = PureAsEffects(GroupingStage(run)), PureAsEffects(CurriculumStage(run))
    if not run.grouping.rewards:
        return [grouping, curriculum]
    return [grouping, GroupScoringStage(run, registry=registry or installed(), ask=ask), curriculum]
