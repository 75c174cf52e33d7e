"""What a name in use protects: a complete replay from any other, a shadow from one that does something else."""

from dataclasses import replace
from typing import Any

import pytest

from rollbus.schemas.errors import ConfigurationError
from rollbus.schemas.records.config import (
    AssemblyConfig,
    CurriculumConfig,
    GroupingConfig,
    RewardConfig,
    RunConfig,
    ScoringConfig,
)
from rollbus.schemas.records.replays import ReplayManifest
from rollbus.streams.replay.kafka.manifest import refuse_taken
from rollbus.streams.replay.plan.plan import ReplayPlan, chain_of
from rollbus.streams.replay.plan.range import Bound

NEGATED_SCORING = ScoringConfig(rewards=(RewardConfig(weight=-1.0),))
HARNESS = CurriculumConfig(mode="harness")
OF_RUNS = chain_of(("grouping", "curriculum"))


def shadow(**changes: Any) -> ReplayManifest:
    """What a shadow with another reward writes down, or with these changes to its plan."""
    options: dict[str, Any] = {
        "name": "gentle",
        "start": Bound(at_end=True),
        "end": Bound(at_end=True),
        "stages": chain_of(("scoring", "grouping", "curriculum")),
        "assembly": AssemblyConfig(),
        "scoring": ScoringConfig(),
        "runs": (RunConfig(),),
        "new_scoring": NEGATED_SCORING,
        "scores": "computed",
    }
    plan, source = ReplayPlan(**(options | changes)), "rollbus."
    return ReplayManifest(name=plan.name, namespace=plan.namespace_in(source), source_namespace=source,
                          state="following", stages=plan.stages, ranges=(), scores=plan.scores,
                          overrides=plan.overrides(), started_at_ms=0)  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"new_scoring": None, "new_curriculum": HARNESS, "stages": OF_RUNS, "scores": "recorded"},
         "stages: scoring, grouping, group-scoring, curriculum, not grouping, group-scoring, curriculum"),
        ({"new_scoring": None, "scores": "recorded"}, "configuration of scoring"),
        ({"new_scoring": ScoringConfig(clip_low=0.0)}, "configuration of scoring"),
        ({"new_curriculum": HARNESS}, r"configuration of curriculum\.main, group-scoring\.main, grouping\.main"),
        ({"new_grouping": GroupingConfig(group_size=4)}, r"configuration of curriculum\.main"),
        ({"scores": "rescored"}, "scores: computed, not rescored"),
    ],
)  # fmt: skip
def test_a_shadow_with_other_settings_cannot_take_the_name(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"shadow 'gentle' already.*{says}.*`rollbus replay delete gentle`"):
        refuse_taken(shadow(), shadow(**changes))


def test_the_same_shadow_goes_on_or_starts_over_under_its_name() -> None:
    again = replace(shadow(), started_at_ms=1, code_hash="other", version="2", configs={"assembly": "other"})
    refuse_taken(shadow(), again)
    rescored = shadow(scores="rescored")
    refuse_taken(rescored, rescored)


def test_a_replay_that_did_not_end_gives_way_to_any_other_of_its_name() -> None:
    begun = replace(shadow(), state="started")
    refuse_taken(begun, replace(begun, stages=("assembly",), overrides=()))
    refuse_taken(None, begun)


@pytest.mark.parametrize(("earlier", "now"), [("complete", "started"), ("complete", "following"),
                                              ("following", "started"), ("started", "following")])  # fmt: skip
def test_a_name_in_use_for_another_kind_of_replay_is_refused(earlier: Any, now: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"replay 'gentle' already; choose another name"):
        refuse_taken(replace(shadow(), state=earlier), replace(shadow(), state=now))
