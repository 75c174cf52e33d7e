"""Attempts at the same problem are compared with one another; whatever cannot be is dropped with its reason."""

from dataclasses import replace
from itertools import permutations
from typing import Any

import pytest

from rollbus.schemas.errors import InvalidRecordError
from rollbus.schemas.records.config import FilterConfig, GroupingConfig, RunConfig
from rollbus.schemas.records.drops import Drop
from rollbus.schemas.records.groups import Group
from rollbus.schemas.records.trajectories import Score
from rollbus.streams.stages.grouping.stage import GroupingStage
from tests.builders import make_config, make_score
from tests.stepper import Stepper, kinds, reasons


def grouping(run: dict[str, Any] | None = None, **config: Any) -> Stepper:
    config = {"group_size": 3} | config
    stepper = Stepper(GroupingStage(RunConfig(grouping=GroupingConfig(**config), **(run or {}))))
    stepper.tick()
    return stepper


def only_group(records: list[Any]) -> Group:
    (group,) = [record for record in records if isinstance(record, Group)]
    return group


def scores(*values: float, **fields: Any) -> list[Score]:
    return [make_score(f"t{index}", value, **fields) for index, value in enumerate(values)]


def test_a_group_closes_when_full_with_members_sorted_and_advantages() -> None:
    first, second, third = scores(0.0, 1.0, 0.5)
    group = only_group(grouping().feed(third, second, first))
    assert [member.trajectory_id for member in group.members] == ["t0", "t1", "t2"]
    assert [member.advantage for member in group.members] == [-0.75, 0.75, 0.0]
    assert (group.reward_mean, group.closed_by, group.has_signal) == (0.5, "full", True)
    assert group.group_key == "example:play:x1"


def test_the_same_members_make_the_same_group_in_any_order() -> None:
    groups = [only_group(grouping().feed(*order)) for order in permutations(scores(0.0, 1.0, 0.5))]
    assert all(group == groups[0] for group in groups)


def test_examples_of_two_tasks_are_apart_wherever_a_colon_is() -> None:
    one = scores(0.0, 1.0, task="support", example_id="refund:17", group_hint="h")
    other = make_score("t2", 0.5, task="support:refund", example_id="17", group_hint="h")
    stepper = grouping(strategy="by_example")
    assert not [record for record in stepper.feed(*one, other) if isinstance(record, Group)]
    assert only_group(stepper.tick(600)).group_key == "example:support:refund%3A17"


def test_a_window_closes_a_short_group_and_drops_a_lonely_score() -> None:
    stepper = grouping(strategy="by_example")
    stepper.feed(*scores(0.0, 1.0), make_score("alone", 1.0, example_id="x2"))
    assert stepper.tick(599) == []
    outputs = stepper.tick(1)
    assert only_group(outputs).closed_by == "window"
    (drop,) = [record for record in outputs if isinstance(record, Drop)]
    assert (drop.reason, drop.unit, drop.trajectory_ids) == ("incomplete_group", "group", ("alone",))


def test_a_fixed_grace_makes_scores_wait_alike_however_fast_their_feedback() -> None:
    stepper = grouping(reward_grace_ms=300_000, group_size=2)
    fast, slow = make_score("fast", 1.0), make_score("slow", None)
    assert stepper.feed(fast, slow) == []
    stepper.tick(299)
    assert stepper.feed(replace(slow, revision=1, outcome="scored", value=0.0)) == []
    assert [member.reward for member in only_group(stepper.tick(1)).members] == [1.0, 0.0]


@pytest.mark.parametrize(
    ("unfinished", "is_after", "reasons_of_drops"),
    [
        ("rewarded_after", True, []),
        ("rewarded_after", False, ["unfinished"]),
        ("none", True, ["unfinished"]),
        ("all", False, []),
    ],
)
def test_an_unfinished_episode_trains_only_if_rewarded_after_or_allowed(
    unfinished: Any, is_after: bool, reasons_of_drops: list[str]
) -> None:
    stepper = grouping(run={"filter": FilterConfig(unfinished=unfinished)}, group_size=2, reward_wait_ms=1_000)
    killed = make_score("killed", 1.0, closed_by="inactivity", is_rewarded_after=is_after)
    outputs = [*stepper.feed(make_score("whole", 0.0), killed), *stepper.tick(2)]
    assert reasons(outputs) == reasons_of_drops
    assert any(isinstance(record, Group) for record in outputs) == (not reasons_of_drops)


def test_a_killed_episode_waits_for_the_reward_that_comes_after() -> None:
    stepper = grouping(reward_wait_ms=300_000, group_size=2)
    killed = make_score("killed", None, closed_by="inactivity", outcome="missing")
    outputs = stepper.feed(make_score("whole", 0.0), killed)
    rewarded = replace(killed, revision=1, outcome="scored", value=1.0, is_rewarded_after=True)
    outputs += [*stepper.feed(rewarded), *stepper.tick(300)]
    assert len(only_group(outputs).members) == 2


def test_a_killed_episode_with_an_early_score_waits_for_a_later_reward() -> None:
    stepper = grouping(reward_wait_ms=300_000)
    assert stepper.feed(make_score("killed", 1.0, closed_by="inactivity")) == []
    assert reasons(stepper.tick(300)) == ["unfinished"]


def test_a_reward_that_never_comes_is_missing_after_the_wait() -> None:
    stepper = grouping(reward_wait_ms=300_000)
    assert stepper.feed(make_score("t1", None)) == []
    (drop,) = stepper.tick(300)
    assert (drop.reason, drop.detail) == ("score_missing", "no reward came within 300000 ms")


@pytest.mark.parametrize("strategy", ["by_example", "adaptive"])
@pytest.mark.parametrize("value", [1e200, -1.7e308])
def test_a_too_large_number_of_an_older_release_drops_its_trajectory_alone(value: float, strategy: str) -> None:
    stepper = grouping(strategy=strategy, group_size=2, reward_grace_ms=1_000)
    huge, revised = make_score("huge", value), make_score("revised", 1.0)
    stepper.feed(huge, revised, replace(revised, revision=1, value=value), *scores(0.0, 1.0))
    outputs = stepper.tick(1)
    assert reasons(outputs) == ["score_failed", "score_failed"]
    assert [member.trajectory_id for member in only_group(outputs).members] == ["t0", "t1"]


def test_a_revision_to_a_too_large_number_removes_its_member() -> None:
    stepper = grouping()
    (first, second) = scores(0.0, 1.0)
    stepper.feed(first, second)
    assert reasons(stepper.feed(replace(second, revision=1, value=1e200))) == ["score_failed"]


def test_a_revision_before_the_close_replaces_and_after_it_is_counted() -> None:
    stepper = grouping(group_size=2, reward_grace_ms=0)
    first, second = scores(0.0, 1.0)
    better = replace(first, revision=1, value=3.0)
    group = only_group(stepper.feed(first, better, second))
    assert [(member.reward, member.score_revision) for member in group.members] == [(3.0, 1), (1.0, 0)]
    (drop,) = stepper.feed(replace(second, revision=1), replace(second, revision=1))
    assert (drop.reason, drop.unit, drop.trajectory_ids) == ("group_closed", "event", ())


def test_a_late_revision_that_still_gives_no_value_is_no_drop() -> None:
    stepper = grouping(reward_wait_ms=20_000)
    score = make_score("t0", None, outcome="missing")
    assert stepper.feed(score) == []
    assert reasons(stepper.tick(21)) == ["score_missing"]
    assert stepper.feed(replace(score, revision=1)) == []
    assert reasons(stepper.feed(replace(score, revision=2, value=1.0, outcome="scored"))) == ["group_closed"]


@pytest.mark.parametrize("fields", [{"untrainable_reason": "no_token_ids", "trainable": False}, {"model": "other"}])
def test_a_late_reward_of_a_score_that_the_run_cannot_use_is_no_drop(fields: dict[str, Any]) -> None:
    stepper = grouping()
    score = make_score("t0", None, outcome="missing", **fields)
    assert len(reasons(stepper.feed(score))) == 1
    assert stepper.feed(replace(score, revision=1, value=1.0, outcome="scored")) == []
    assert reasons(stepper.feed(replace(score, revision=2, excluded=True))) == ["excluded"]


def test_an_older_revision_that_comes_after_a_newer_one_changes_nothing() -> None:
    stepper = grouping(group_size=2, reward_grace_ms=0)
    first, second = scores(0.0, 1.0)
    newest, older = replace(first, revision=2, value=3.0), replace(first, revision=1, value=-3.0)
    group = only_group(stepper.feed(first, newest, older, first, second))
    assert [(member.reward, member.score_revision) for member in group.members] == [(3.0, 2), (1.0, 0)]


def test_a_retracted_reward_takes_its_member_out_of_an_open_group() -> None:
    stepper = grouping(group_size=2, reward_grace_ms=0)
    first, second, third = scores(0.0, 1.0, 0.5)
    stepper.feed(first)
    assert reasons(stepper.feed(replace(first, revision=1, outcome="missing", value=None))) == ["score_missing"]
    assert [member.trajectory_id for member in only_group(stepper.feed(second, third)).members] == ["t1", "t2"]


def test_an_exclusion_takes_its_member_out_of_an_open_group() -> None:
    stepper = grouping(group_size=2)
    stepper.feed(make_score("t0", 1.0))
    assert reasons(stepper.feed(make_score("t0", 1.0, revision=1, excluded=True))) == ["excluded"]
    assert stepper.feed(make_score("t1", 1.0)) == []


@pytest.mark.parametrize("excluded", [False, True])
@pytest.mark.parametrize(
    "fields", [{"prompt_hash": "other"}, {"tools_hash": "other"}, {"example_id": "x2"}, {"group_id": "g"}]
)
@pytest.mark.parametrize("explicit", [{}, {"group_id": "named", "group_size": 3}])
def test_a_revision_that_belongs_elsewhere_is_refused_and_changes_nothing(
    explicit: dict[str, Any], fields: dict[str, Any], excluded: bool
) -> None:
    first, second, third = scores(0.0, 1.0, 0.5, **explicit)
    stepper = grouping()
    stepper.feed(first, second)
    if explicit and "example_id" in fields:
        fields = {"model": "other"}  # a named group does not ask for the example
    with pytest.raises(InvalidRecordError, match="revision 1 of the score of t0 belongs to another group"):
        stepper.feed(replace(first, revision=1, excluded=excluded, **fields))
    assert only_group(stepper.feed(third)) == only_group(grouping().feed(first, second, third))


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"trainable": False, "untrainable_reason": "no_logprobs"}, "untrainable"),
        ({"trainable": False, "untrainable_reason": "missing_events"}, "missing_events"),
        ({"trainable": False, "untrainable_reason": "too_short"}, "too_short"),
        ({"excluded": True}, "excluded"),
        ({"longest_history_tokens": 101}, "overlong"),
        ({"outcome": "failed", "value": None}, "score_failed"),
        ({"model": "another"}, "not_targeted"),
        ({"task": "other"}, "not_targeted"),
        ({"labels": {}}, "not_targeted"),
    ],
)
def test_an_incomparable_score_leaves_before_the_mean(fields: dict[str, Any], reason: str) -> None:
    chosen = FilterConfig(tasks=("play",), labels={"env": "prod"})
    stepper = grouping({"filter": chosen}, max_history_tokens=100)
    labelled: dict[str, Any] = {"labels": {"env": "prod"}}
    outputs = stepper.feed(
        make_score("odd", **labelled | {"value": 100.0} | fields), *scores(0.0, 1.0, 0.5, **labelled)
    )
    (drop,) = [record for record in outputs if isinstance(record, Drop)]
    assert (drop.reason, drop.trajectory_ids, drop.run_id) == (reason, ("odd",), "main")
    assert only_group(outputs).reward_max == 1.0


@pytest.mark.parametrize("fields", [{"prompt_hash": "changed"}, {"tools_hash": "changed"}])
@pytest.mark.parametrize("group", [{}, {"group_id": "g", "group_size": 2}])
def test_attempts_at_one_example_are_compared_despite_their_prompts(
    group: dict[str, Any], fields: dict[str, str]
) -> None:
    first, second = make_score("t0", 0.0, **group), make_score("t1", 1.0, **group | fields)
    assert len(only_group(grouping(group_size=2).feed(first, second)).members) == 2


@pytest.mark.parametrize("fields", [{"prompt_hash": "changed"}, {"tools_hash": "changed"}])
@pytest.mark.parametrize("group", [{}, {"group_id": "g", "group_size": 2}])
def test_a_check_for_equal_prompts_drops_another_one_and_names_both(
    group: dict[str, Any], fields: dict[str, str]
) -> None:
    stepper = grouping(strategy="by_example", group_size=2, same_prompt=True)
    (drop,) = stepper.feed(make_score("t0", 0.0, **group), make_score("odd", 1.0, **group | fields))
    assert drop.reason == "group_mismatch"
    assert "(t0)" in drop.detail
    assert drop.detail.endswith("changed")
    assert len(only_group(stepper.feed(make_score("t1", 1.0, **group))).members) == 2


def test_another_model_is_a_mismatch_with_a_named_group() -> None:
    stepper = grouping({"filter": FilterConfig(models=("agent", "other"))})
    named: dict[str, Any] = {"group_id": "g", "group_size": 2}
    assert reasons(stepper.feed(make_score("t0", 0.0, **named), make_score("odd", 1.0, model="other", **named))) == [
        "group_mismatch"
    ]


def test_an_explicit_group_closes_at_its_declared_size_and_takes_no_more() -> None:
    stepper = grouping()
    named: dict[str, Any] = {"group_id": "g", "group_size": 2}
    outputs = stepper.feed(*(make_score(f"t{index}", index, **named) for index in range(3)))
    assert kinds(outputs) == ["Group", "Drop"]
    assert reasons(outputs) == ["group_closed"]
    stepper.restore()
    assert reasons(stepper.feed(make_score("t9", 1.0, **named))) == ["group_closed"]


def test_strategy_by_prompt_groups_across_examples() -> None:
    stepper = grouping(strategy="by_prompt", group_size=2)
    group = only_group(stepper.feed(make_score("a", 0.0, example_id="x1"), make_score("b", 1.0, example_id="x2")))
    assert group.group_key == "prompt:play:prompt"


WITHOUT_TOKENS: dict[str, Any] = {
    "prompt_hash": "",
    "trainable": False,
    "untrainable_reason": "no_prompt_token_ids",
    "version": None,
}


def test_attempts_without_tokens_are_compared_by_their_openings() -> None:
    stepper = grouping({"filter": FilterConfig(without_tokens=True)}, strategy="by_prompt", group_size=2)
    first, other, second = (
        make_score(name, value, opening_hash=opening, **WITHOUT_TOKENS)
        for name, value, opening in (("t0", 0.0, "o1"), ("odd", 0.5, "o2"), ("t1", 1.0, "o1"))
    )
    group = only_group(stepper.feed(first, other, second))
    assert (group.group_key, [member.trajectory_id for member in group.members]) == ("opening:play:o1", ["t0", "t1"])


def test_without_tokens_a_check_for_equal_prompts_compares_openings() -> None:
    stepper = grouping({"filter": FilterConfig(without_tokens=True)}, strategy="by_example", same_prompt=True)
    first, odd = (make_score(name, 1.0, opening_hash=name, **WITHOUT_TOKENS) for name in ("t0", "odd"))
    (drop,) = stepper.feed(first, odd)
    assert drop.detail.endswith("began with prompt t0 (t0), and this has prompt odd")


def test_equal_rewards_have_no_signal_and_no_advantage() -> None:
    group = only_group(grouping(advantage="mean_std").feed(*scores(0.3, 0.3, 0.1 + 0.2)))
    assert not group.has_signal
    assert [member.advantage for member in group.members] == [0.0] * 3


def test_a_window_starts_when_its_first_member_joins_not_when_it_came() -> None:
    stepper = grouping(reward_grace_ms=900_000)
    stepper.feed(*scores(0.0, 1.0))
    assert stepper.tick(900) == []
    assert stepper.tick(599) == []
    assert only_group(stepper.tick(1)).closed_by == "window"


def test_a_configuration_of_the_run_holds_from_its_record_on() -> None:
    stepper = grouping()
    smaller = RunConfig(grouping=GroupingConfig(group_size=2))
    stepper.feed(make_config("grouping", smaller, run_id="other"), make_score("t0", 0.0))
    group = only_group(stepper.feed(make_config("grouping", smaller, run_id="main"), make_score("t1", 1.0)))
    assert group.config_hash == smaller.config_hash()


def test_old_groups_leave_no_marks_behind() -> None:
    stepper = grouping(group_size=2)
    stepper.feed(*scores(0.0, 1.0), make_score("t9", 0.0, group_id="g", group_size=1))
    stepper.tick(48 * 3600)
    assert [key for key in stepper.changelog if not key.startswith((b"clock", b"habit", b"level"))] == []


@pytest.mark.parametrize("closing", ["full", "window"])
def test_members_are_written_to_the_changelog_in_one_order_whatever_their_names_hash_to(closing: str) -> None:
    names = [f"t{number:02}" for number in range(16)]
    stepper = grouping(group_size=16 if closing == "full" else 17)
    stepper.feed(*(make_score(name, 1.0) for name in reversed(names)))
    stepper.tick(600)
    marks = [key.partition(b"\x1f")[2].decode() for key in stepper.changelog if key.startswith(b"mark\x1f")]
    assert marks == names


@pytest.mark.parametrize("strategy", ["by_example", "adaptive"])
def test_rewards_of_two_settings_are_not_compared(strategy: Any) -> None:
    named: dict[str, Any] = {"group_id": "g", "group_size": 3}
    stepper = grouping(strategy=strategy)
    stepper.feed(*scores(0.0, 1.0, **named))
    outputs = [*stepper.feed(make_score("t2", 50.0, reward_version="r2", **named)), *stepper.tick(600)]
    (drop,) = outputs
    assert (drop.reason, drop.unit, drop.trajectory_ids) == ("group_mismatch", "group", ("t0", "t1", "t2"))
    assert "scored by 2 versions of the rewards" in drop.detail


def test_a_group_that_is_scored_again_as_a_whole_is_compared() -> None:
    stepper, first_scores = grouping(strategy="by_example", reward_grace_ms=0), scores(0.0, 1.0)
    stepper.feed(*first_scores)
    stepper.feed(
        *(
            replace(score, revision=1, value=9.0 + index, reward_version="r2")
            for index, score in enumerate(first_scores)
        )
    )
    group = only_group(stepper.feed(make_score("t2", 11.0, reward_version="r2")))
    assert [member.reward for member in group.members] == [9.0, 10.0, 11.0]
