"""Events become trajectories: whole ones at once, broken ones counted, late ones never silently."""

from dataclasses import replace
from typing import Any

import pytest

from rollbus.schemas.records.config import AssemblyConfig
from rollbus.schemas.records.trajectories import Trajectory
from rollbus.streams.stages.assembly.stage import AssemblyStage
from tests.builders import (
    START_MS,
    make_closed,
    make_config,
    make_ended,
    make_episode,
    make_excluded,
    make_reward,
    make_started,
    make_tool,
    make_turn,
)
from tests.stepper import Stepper, kinds, reasons


def assembling(**config: Any) -> Stepper:
    stepper = Stepper(AssemblyStage(AssemblyConfig(**config)))
    stepper.tick()
    return stepper


def only_trajectory(records: list[Any]) -> Trajectory:
    (trajectory,) = [record for record in records if isinstance(record, Trajectory)]
    return trajectory


def test_a_whole_episode_goes_out_at_its_last_event() -> None:
    stepper = assembling()
    *before, last = make_episode(turns=2, reward=0.5)
    assert stepper.feed(*before) == []
    trajectory = only_trajectory(stepper.feed(last))
    assert trajectory.trainable
    assert [span.turn for span in trajectory.histories[0].spans] == [0, 1]
    assert [reward.value for reward in trajectory.rewards] == [0.5]
    assert (trajectory.closed_by, trajectory.stop_reason) == ("ended", "completed")
    assert trajectory.group_hint == "example:play:x1"


def test_an_empty_example_or_group_names_nothing() -> None:
    trajectory = only_trajectory(assembling().feed(*make_episode(start={"example_id": "", "group_id": ""})))
    assert (trajectory.example_id, trajectory.group_id) == (None, None)
    assert trajectory.group_hint == f"opening:play:{trajectory.opening_hash}"


def test_a_trajectory_says_why_it_may_lack_turns() -> None:
    *before, last = make_episode(turns=1)
    assert only_trajectory(assembling().feed(*before, last)).partial == ()
    trajectory = only_trajectory(assembling().feed(*before, replace(last, partial=("calls_outside_episode",))))
    assert (trajectory.partial, trajectory.trainable) == (("calls_outside_episode",), True)
    stepper = assembling(inactivity_ms=1000)
    stepper.feed(*before)
    assert only_trajectory(stepper.tick(100)).partial == ("missing_events",)


def test_a_closed_episode_leaves_one_stub_and_its_rewards() -> None:
    stepper = assembling()
    stepper.feed(*make_episode(turns=5, reward=0.5))
    tables = sorted(key.split(b"\x1f")[0] for key in stepper.changelog)
    assert tables == [b"clock", b"e", b"stub"]


def test_the_same_id_with_other_content_is_a_conflict_counted_once() -> None:
    stepper = assembling()
    start, *rest = make_episode()
    other = replace(start, task="other")
    stepper.feed(start)
    assert reasons(stepper.feed(other, other)) == ["duplicate_conflict"]
    assert only_trajectory(stepper.feed(*rest)).task == "play"
    assert reasons(stepper.feed(replace(start, task="third"))) == ["duplicate_conflict"]


@pytest.mark.parametrize("closed", [False, True])
def test_a_repeated_report_under_its_key_is_the_same_report(closed: bool) -> None:
    stepper = assembling()
    report = make_reward(value=1.0, key="ticket", writer="w1", at_ms=START_MS)
    stepper.feed(*make_episode(reward=None), report) if closed else stepper.feed(report)
    again = replace(report, writer_id="w2", occurred_at_ms=START_MS + 5_000, episode_started_at_ms=0, producer="other")
    assert stepper.feed(again, again) == []
    other = replace(again, value=0.0)
    assert reasons(stepper.feed(other)) == ["duplicate_conflict"]


def test_events_are_merged_by_time_once_all_writers_have_closed() -> None:
    stepper = assembling()
    first = [
        make_started(),
        make_turn(sequence=1, at_ms=START_MS + 10, text="one"),
        make_turn(sequence=2, at_ms=START_MS + 30, text="three"),
        make_ended(sequence=3, writer_ids=("w1", "w2")),
        make_closed(count=4),
    ]
    second = [make_turn(sequence=0, writer="w2", at_ms=START_MS + 20, text="two"), make_closed(count=1, writer="w2")]
    assert stepper.feed(*first, second[0]) == []
    trajectory = only_trajectory(stepper.feed(second[1]))
    assert [turn.completion.content for turn in trajectory.turns] == ["one", "two", "three"]


def test_a_writer_whose_clock_jumps_back_keeps_its_order() -> None:
    stepper = assembling()
    events = [
        make_started(),
        make_turn(sequence=1, at_ms=START_MS + 5_000, text="one"),
        make_turn(sequence=2, at_ms=START_MS - 5_000, text="two"),
        make_ended(sequence=3),
        make_closed(count=4),
    ]
    assert [turn.completion.content for turn in only_trajectory(stepper.feed(*events)).turns] == ["one", "two"]


@pytest.mark.parametrize("lost", [1, 2, 3])
def test_a_hole_makes_an_episode_untrainable_after_the_grace_and_is_counted(lost: int) -> None:
    stepper = assembling()
    events = make_episode(turns=2, reward=0.5)
    assert stepper.feed(*(event for event in events if event.sequence != lost)) == []
    assert stepper.tick(59) == []
    outputs = stepper.tick(1)
    assert reasons(outputs) == ["missing_events"]
    trajectory = only_trajectory(outputs)
    assert not trajectory.trainable
    assert trajectory.untrainable_reason == "missing_events"


def test_a_writer_that_never_came_counts_as_missing() -> None:
    stepper = assembling()
    stepper.feed(make_started(), make_turn(), make_ended(writer_ids=("w1", "w9")), make_closed(count=3))
    (drop, _) = stepper.tick(60)
    assert drop.detail == "missing by writer: w9: ?"


def test_an_episode_closed_by_inactivity_stays_trainable() -> None:
    stepper = assembling()
    stepper.feed(make_started(), make_turn())
    assert stepper.tick(1_799) == []
    stepper.feed(make_tool())
    assert stepper.tick(1_799) == []
    trajectory = only_trajectory(stepper.tick(1))
    assert (trajectory.closed_by, trajectory.trainable) == ("inactivity", True)


def test_a_trajectory_says_whether_a_reward_came_after_its_last_turn() -> None:
    for reward_ms, other_ms, is_after in ((30, 20, True), (15, 20, False)):
        stepper = assembling()
        reward = make_reward(writer="user", at_ms=START_MS + reward_ms)
        stepper.feed(
            make_started(), make_turn(at_ms=START_MS + 10), make_turn(sequence=2, at_ms=START_MS + other_ms), reward
        )
        trajectory = only_trajectory(stepper.tick(1_800))
        assert (trajectory.closed_by, trajectory.is_rewarded_after) == ("inactivity", is_after)


def test_a_late_reward_is_a_revision_with_all_rewards_in_force() -> None:
    stepper = assembling()
    stepper.feed(*make_episode(reward=0.5))
    late = make_reward(value=1.0, key="late", name="thumbs", at_ms=START_MS + 99_000)
    (revised,) = stepper.feed(late, late)
    assert (revised.revision, [reward.value for reward in revised.rewards]) == (1, [0.5, 1.0])


def test_a_retraction_without_target_withdraws_earlier_reports_by_name() -> None:
    stepper = assembling()
    stepper.feed(
        make_reward(value=0.0, key="a", at_ms=START_MS),
        make_reward(value=0.3, key="x", name="other", at_ms=START_MS),
        make_reward(value=None, key="b", retracted=True, at_ms=START_MS + 1),
        make_reward(value=0.7, key="c", at_ms=START_MS + 2),
    )
    trajectory = only_trajectory(stepper.feed(*make_episode(reward=None)))
    assert sorted((reward.name, reward.value) for reward in trajectory.rewards) == [("other", 0.3), ("reward", 0.7)]


def test_a_revision_after_the_late_horizon_is_an_orphan() -> None:
    stepper = assembling(late_horizon_ms=100_000)
    stepper.feed(*make_episode())
    stepper.tick(100)
    assert not [key for key in stepper.changelog if key.startswith((b"stub", b"e\x1f"))]
    assert stepper.feed(make_reward()) == []
    assert reasons(stepper.tick(100)) == ["orphaned_reward"]
    stepper.tick(100)
    assert [key.split(b"\x1f")[0] for key in stepper.changelog] == [b"clock"]


def test_a_reward_may_come_before_its_episode() -> None:
    stepper = assembling()
    stepper.feed(make_reward(value=0.25, writer="feedback"))
    stepper.tick(3_600)
    trajectory = only_trajectory(stepper.feed(*make_episode(reward=None)))
    assert [reward.value for reward in trajectory.rewards] == [0.25]


def test_an_excluded_open_episode_is_dropped_with_its_later_events() -> None:
    stepper = assembling()
    events = make_episode()
    stepper.feed(*events[:2])
    assert reasons(stepper.feed(make_excluded())) == ["excluded"]
    assert set(reasons(stepper.feed(*events[2:]))) == {"excluded"}
    assert stepper.feed(*events[:2]) == []


def test_excluding_a_closed_episode_revises_it() -> None:
    stepper = assembling()
    stepper.feed(*make_episode())
    (revised,) = stepper.feed(make_excluded(), make_excluded())
    assert revised.excluded
    assert reasons(stepper.feed(make_reward(key="late"))) == ["excluded"]


def test_an_exclusion_removes_a_persons_words_from_the_changelog() -> None:
    """Reports from before the close, which are kept for the late horizon, lose their words, and so do later ones."""
    stepper = assembling(reward_sources={"judged": ("judge",)})
    words: dict[str, Any] = {"comment": "by ann", "source": "judge"}
    stepper.feed(*make_episode(reward=None, start={"labels": {"said": "by ann"}}))
    stepper.feed(make_reward(**words), make_reward(name="judged", **words | {"source": "ann"}))
    kept_reports = [
        make_reward(key="late", **words),
        make_reward(name="judged", key="late", **words | {"source": "ann"}),
    ]
    stepper.feed(*kept_reports)
    assert any(b"by ann" in row for row in stepper.changelog.values()), "a report is kept with its words"
    (revised,) = stepper.feed(make_excluded())
    assert revised.excluded
    assert stepper.feed(*kept_reports, make_excluded()) == [], "what is known is known by its checksum"
    other_reports = [
        make_reward(key="new", **words),
        make_reward(name="judged", key="new", **words | {"source": "ann"}),
    ]
    assert reasons(stepper.feed(*other_reports)) == ["excluded", "excluded"]
    assert [key for key, row in stepper.changelog.items() if b"by ann" in row or b"asked" in row] == []
    stepper.restore()
    assert stepper.feed(*kept_reports, *other_reports, make_excluded()) == []


def test_a_sub_agent_has_a_trajectory_of_its_own_that_names_its_parent() -> None:
    stepper = assembling()
    inner = make_episode("e2", root="e1", start={"parent_episode_id": "e1"})
    mixed = [event for pair in zip(make_episode("e1"), inner, strict=True) for event in pair]
    trajectories = [record for record in stepper.feed(*mixed) if isinstance(record, Trajectory)]
    assert [
        (trajectory.episode_id, trajectory.root_episode_id, trajectory.parent_episode_id) for trajectory in trajectories
    ] == [
        ("e1", "e1", None),
        ("e2", "e1", "e1"),
    ]


def test_untargeted_turns_are_context_only() -> None:
    stepper = assembling(target_functions=("plan",), target_model="agent")
    events = [
        make_started(),
        make_turn(sequence=1, function="plan"),
        make_turn(sequence=2, function="chat"),
        make_turn(sequence=3, function="plan", model="judge@1"),
        make_ended(sequence=4),
        make_closed(count=5),
    ]
    trajectory = only_trajectory(stepper.feed(*events))
    assert [turn.trainable for turn in trajectory.turns] == [True, False, False]
    assert [span.turn for history in trajectory.histories for span in history.spans] == [0]


@pytest.mark.parametrize(
    ("config", "turn", "reason"),
    [
        ({"min_episode_length": 2}, {}, "too_short"),
        ({"target_functions": ("plan",)}, {}, "not_targeted"),
        ({}, {"untrainable": "no_logprobs"}, "no_logprobs"),
        ({}, {"version": None}, "no_policy_version"),
    ],
)
def test_an_untrainable_trajectory_goes_out_with_its_reason(
    config: dict[str, Any], turn: dict[str, Any], reason: str
) -> None:
    events = [make_started(), make_turn(**turn), make_ended(), make_closed()]
    trajectory = only_trajectory(assembling(**config).feed(*events))
    assert (trajectory.trainable, trajectory.untrainable_reason) == (False, reason)


def test_a_turn_keeps_how_it_was_asked_to_be_sampled() -> None:
    sampling_fields: dict[str, Any] = {
        "temperature": 0.7,
        "top_p": 0.9,
        "top_k": 40,
        "min_p": 0.05,
        "frequency_penalty": 0.5,
        "presence_penalty": 0.25,
        "repetition_penalty": 1.1,
    }
    trajectory = only_trajectory(
        assembling().feed(make_started(), make_turn(**sampling_fields), make_ended(), make_closed())
    )
    (turn,) = trajectory.turns
    assert {name: getattr(turn, name) for name in sampling_fields} == sampling_fields


def test_an_episode_without_turns_goes_out_untrainable() -> None:
    events = [make_started(), make_ended(sequence=1), make_closed(count=2)]
    assert only_trajectory(assembling().feed(*events)).untrainable_reason == "no_turns"


def test_tool_calls_are_kept_unless_configured_away() -> None:
    events = [make_started(), make_turn(), make_tool(), make_ended(sequence=3), make_closed(count=4)]
    assert [tool.name for tool in only_trajectory(assembling().feed(*events)).tools] == ["search"]
    assert only_trajectory(assembling(include_tool_calls=False).feed(*events)).tools == ()


def test_a_configuration_holds_from_its_record_on() -> None:
    stepper = assembling()
    new = AssemblyConfig(inactivity_ms=10_000)
    stepper.feed(make_started(), make_turn(), make_config("assembly", new), make_config("scoring", AssemblyConfig()))
    assert only_trajectory(stepper.tick(10)).config_hash == new.config_hash()


SOURCES = {"reward": ("agent", "checker"), "*": ("user",)}


def test_a_reward_from_a_wrong_source_is_counted_once_without_a_hole() -> None:
    stepper = assembling(reward_sources=SOURCES)
    *before, reward, ended, closed = make_episode(reward=0.5)
    forged = replace(reward, source="user")
    assert reasons(stepper.feed(*before, forged, forged)) == ["reward_not_allowed"]
    stepper.restore()
    assert stepper.feed(forged) == []
    trajectory = only_trajectory(stepper.feed(ended, closed))
    assert (trajectory.rewards, trajectory.trainable) == ((), True)
    assert stepper.feed(forged) == []


def test_a_source_changes_no_reward_of_others_late_or_by_retraction() -> None:
    stepper = assembling(reward_sources=SOURCES)
    (trajectory,) = stepper.feed(*make_episode(reward=0.5))
    (standing,) = trajectory.rewards
    forged = [
        make_reward(value=9.0, key="late", source="user"),
        make_reward(value=None, key="gone", source="user", retracted=True),
        make_reward(value=9.0, key="over", source="user", supersedes=standing.event_id),
    ]
    assert reasons(stepper.feed(*forged)) == ["reward_not_allowed"] * 3
    stepper.restore()
    assert stepper.feed(*forged) == []
    (revised,) = stepper.feed(make_reward(value=0.75, key="checked", source="checker"))
    assert sorted(reward.value for reward in revised.rewards) == [0.5, 0.75]


def test_a_reward_without_its_own_rule_follows_the_rule_for_others() -> None:
    stepper = assembling(reward_sources=SOURCES)
    stepper.feed(*make_episode(reward=None))
    other = make_reward(name="thumb", key="a", source="agent")
    assert reasons(stepper.feed(other)) == ["reward_not_allowed"]
    assert kinds(stepper.feed(replace(other, event_id="b", source="user"))) == ["RewardRevised"]
    anybody = assembling()
    anybody.feed(*make_episode(reward=None))
    assert kinds(anybody.feed(other)) == ["RewardRevised"]


def test_a_source_may_not_supersede_the_reports_of_others() -> None:
    stepper = assembling(reward_sources=SOURCES)
    (trajectory,) = stepper.feed(*make_episode(reward=0.5))
    (standing,) = trajectory.rewards
    (revised,) = stepper.feed(make_reward(name="thumb", key="x", source="user", supersedes=standing.event_id))
    assert sorted(reward.name for reward in revised.rewards) == ["reward", "thumb"]
