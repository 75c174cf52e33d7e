"""A plan to its stages, in the order of the flow; only how a trajectory is scored is left to the caller."""

from collections.abc import Callable
from typing import Any

from rollbus.schemas.records.config import RunConfig
from rollbus.schemas.topics import STAGE_INPUTS
from rollbus.streams.pipeline import AnyStage
from rollbus.streams.replay.plan.plan import ReplayPlan
from rollbus.streams.stages.alias import AliasStage
from rollbus.streams.stages.assembly.stage import AssemblyStage
from rollbus.streams.stages.curriculum.stage import CurriculumStage
from rollbus.streams.stages.grouping.stage import GroupingStage
from rollbus.streams.state.stage import PureAsEffects, Stage

PURE = ("alias", "assembly", "grouping")
"""Stages that have the partitions of the events and ask no function: any process may decide a partition."""


def first_stages(plan: ReplayPlan) -> list[AnyStage]:
    """Return the stages that read the plan's own input, if they ask no function."""
    return [stage for kind in plan.stages if STAGE_INPUTS[kind] is plan.input for stage in pure_stages(plan, kind)]


def pure_stages(plan: ReplayPlan, kind: str) -> list[AnyStage]:
    """Return the stages of a kind that asks no function."""
    if kind == "alias":
        return [PureAsEffects(AliasStage(plan.assembly))]
    if kind == "assembly":
        return [PureAsEffects(AssemblyStage(plan.assembly))]
    of_run: dict[str, Callable[[RunConfig], Stage[Any]]] = {"grouping": GroupingStage, "curriculum": CurriculumStage}
    return [PureAsEffects(of_run[kind](run)) for run in plan.run_configs()]
