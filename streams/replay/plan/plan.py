"""What is to be replayed: parsed and checked, before anything is read."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import ValidationError

from rollbus.schemas.errors import ConfigurationError, nearest
from rollbus.schemas.records.config import (
    AssemblyConfig,
    ComponentConfig,
    Config,
    CurriculumConfig,
    GroupingConfig,
    RunConfig,
    ScoringConfig,
)
from rollbus.schemas.records.control import ConfigApplied
from rollbus.schemas.records.replays import ReplayConfig, ReplayFeedback, ReplayScores
from rollbus.schemas.topics import STAGE_INPUTS, Topic
from rollbus.streams.replay.plan.range import Bound
from rollbus.streams.state.ticker import config_applied

C = TypeVar("C", bound=Config)
CHAIN = ("assembly", "scoring", "grouping", "group-scoring", "curriculum")
"""The stages of a whole replay, in the order of the flow."""
STAGES = ("alias", *CHAIN)
OF_A_RUN = ("grouping", "group-scoring", "curriculum")
SETTINGS_OF = "settings."
"""Begins, before its name, the place in a manifest's configurations of a run's settings without what is replayed."""


@dataclass(frozen=True, slots=True)
class Changes:
    """Some values of a configuration section that differ from those in force: each run keeps the rest of its own."""

    values: tuple[tuple[str, Any], ...]

    def made_to(self, section: C, run_id: str) -> C:
        """Return a run's section with these values; raises ConfigurationError where they do not go with the rest."""
        try:
            return type(section).model_validate(section.model_dump(mode="json") | dict(self.values))
        except ValidationError as error:
            changes = ", ".join(f"{name}={value}" for name, value in self.values)
            mistakes = "; ".join(mistake["msg"].removeprefix("Value error, ") for mistake in error.errors())
            raise ConfigurationError(f"run {run_id} cannot have {changes}: {mistakes}") from error


@dataclass(frozen=True, slots=True)
class ReplayPlan:
    """One replay."""

    name: str
    start: Bound
    end: Bound
    stages: tuple[str, ...]
    """Without the runs; in order."""
    assembly: AssemblyConfig
    scoring: ScoringConfig
    runs: tuple[RunConfig, ...]
    """What holds until a recorded configuration replaces it."""
    new_scoring: ScoringConfig | None = None
    new_grouping: GroupingConfig | Changes | None = None
    new_curriculum: CurriculumConfig | Changes | None = None
    """What holds all along, whatever was recorded; changes are made to what each run has, or had."""
    feedback: ReplayFeedback = "recorded"
    scores: ReplayScores = "recorded"
    allow_missing: bool = False

    def __post_init__(self) -> None:
        """Raise ConfigurationError where the rewards of the end would change nothing."""
        if self.feedback == "end" and self.stages[0] != "assembly":
            raise ConfigurationError(
                "--feedback end says how episodes are assembled; leave --stage out, or name assembly"
            )

    def namespace_in(self, source: str) -> str:
        """Return the prefix of its topics, for the log of a namespace."""
        return namespace_of(self.name, source)

    @property
    def input(self) -> Topic:
        """The recorded topic that it reads."""
        return STAGE_INPUTS[self.stages[0]]

    @property
    def scoring_config(self) -> ScoringConfig:
        """The scoring to begin with."""
        return self.new_scoring or self.scoring

    def run_configs(self) -> tuple[RunConfig, ...]:
        """Return the runs to begin with."""
        return tuple(map(self.changed_run, self.runs))

    def changed_run(self, run: RunConfig) -> RunConfig:
        """Return a run with the changes of this replay; raises ConfigurationError where they do not fit."""
        new = {"grouping": self.new_grouping, "curriculum": self.new_curriculum}
        changes = {
            section: section_config.made_to(getattr(run, section), run.run_id)
            if isinstance(section_config, Changes)
            else section_config
            for section, section_config in new.items()
            if section_config is not None
        }
        return run.model_copy(update=changes) if changes else run

    def asked_again(self) -> tuple[ComponentConfig, ...]:
        """Return the rewards that its stages begin with."""
        scoring = self.scoring_config.rewards if "scoring" in self.stages else ()
        judged_runs = self.run_configs() if "group-scoring" in self.stages else ()
        return (*scoring, *(reward for run in judged_runs for reward in run.grouping.rewards))

    def change(self, record: ConfigApplied) -> ConfigApplied | None:
        """Return what to use in place of a recorded configuration; None for nothing."""
        if record.stage == "scoring" and self.new_scoring is not None:
            return None
        if record.stage not in OF_A_RUN:
            return record
        try:
            run = RunConfig.model_validate_json(record.content)
        except ValidationError:
            return record  # the stage refuses it, as live did
        changed_run = self.changed_run(run)
        return record if changed_run is run else config_applied(record.stage, run.run_id, changed_run)

    def overrides(self) -> tuple[ReplayConfig, ...]:
        """Return the configurations that this replay does not take from the log."""
        configs: list[ConfigApplied] = []
        if self.new_scoring is not None:
            configs.append(config_applied("scoring", None, self.new_scoring))
        if self.new_grouping is not None or self.new_curriculum is not None:
            configs += [config_applied(stage, run.run_id, run) for run in self.run_configs() for stage in OF_A_RUN]
        return tuple(
            ReplayConfig(
                stage=config.stage, run_id=config.run_id, config_hash=config.config_hash, content=config.content
            )
            for config in configs
        )


def namespace_of(name: str, source: str) -> str:
    """Return the namespace of a replay of a namespace's log; another namespace may have a replay of the same name."""
    return f"replay-{name}.{source}"


def check_name(name: str) -> None:
    """Raise ConfigurationError for a name that no topic can have."""
    if not re.fullmatch(r"[a-z0-9][a-z0-9-]{0,40}", name):
        raise ConfigurationError(f"{name!r} is not a name for a replay: use small letters, digits and -, at most 41")


def chain_of(stages: Sequence[str]) -> tuple[str, ...]:
    """Return the stages in the order of the flow, all without a name; raises ConfigurationError for a broken chain."""
    if not stages:
        return CHAIN
    unknown = sorted(set(stages) - set(STAGES))
    if unknown:
        raise ConfigurationError(f"no stage {', '.join(unknown)}; {nearest(unknown[0], STAGES)}")
    chosen_stages = tuple(stage for stage in STAGES if stage in stages)
    if {"grouping", "curriculum"} <= set(chosen_stages):
        chosen_stages = tuple(stage for stage in CHAIN if stage in {*chosen_stages, "group-scoring"})
    if chosen_stages in (("alias",), *(CHAIN[a:b] for a in range(5) for b in range(a + 1, 6))):
        return chosen_stages
    raise ConfigurationError(
        f"stages {', '.join(chosen_stages)} do not follow one another; the flow is {' → '.join(CHAIN)}"
    )
