"""One attempt at each example is held against what is expected; attempts that come together are compared."""

import random
from dataclasses import replace
from typing import Any

import pytest

from rollbus.schemas.records.config import GroupingConfig, RewardConfig, RunConfig
from rollbus.schemas.records.groups import Group
from rollbus.schemas.records.trajectories import Score
from rollbus.streams.stages.grouping import stage as grouping_stage
from rollbus.streams.stages.grouping.stage import GroupingStage
from tests.builders import make_score
from tests.stepper import Stepper, kinds, reasons


def stepper_of(*, restoring: bool = True, run: dict[str, Any] | None = None, **config: Any) -> Stepper:
    stepper = Stepper(GroupingStage(RunConfig(grouping=GroupingConfig(**config), **(run or {}))), restoring=restoring)
    stepper.tick()
    return stepper


def ticket(number: int, value: float | None, **fields: Any) -> Score:
    return make_score(f"t{number}", value, **({"example_id": f"ticket-{number}"} | fields))


def verdict(number: int, value: float, revision: int = 1, **fields: Any) -> Score:
    return replace(ticket(number, value, **fields), revision=revision)


def groups_in(records: list[Any]) -> list[Group]:
    return [record for record in records if isinstance(record, Group)]


def test_a_single_ticket_is_compared_with_the_level_of_its_task() -> None:
    stepper = stepper_of()
    stepper.feed(ticket(0, 0.0), ticket(1, 1.0))
    stepper.tick(1)
    (group,) = groups_in(stepper.feed(ticket(2, 1.0)))
    (member,) = group.members
    assert (member.advantage, member.expected, member.expected_from) == (0.5, 0.5, "task")
    assert (group.closed_by, group.advantage_kind, group.has_signal) == ("single", "expected", True)


@pytest.mark.parametrize("restoring", [False, True])
def test_what_another_reward_has_earned_is_expected_of_no_attempt(restoring: bool) -> None:
    stepper = stepper_of(restoring=restoring)
    stepper.feed(ticket(0, 0.0), ticket(1, 1.0))
    stepper.tick(1)
    new_reward = {"reward_version": "r2"}
    assert stepper.feed(ticket(2, 40.0, **new_reward), ticket(3, 60.0, **new_reward)) == []
    advantages = [group.members[0].advantage for group in groups_in(stepper.tick(1))]
    assert advantages == [-20.0, 20.0]


def test_first_attempts_with_rewards_of_two_settings_are_not_compared() -> None:
    stepper = stepper_of()
    assert stepper.feed(ticket(0, 0.0), ticket(1, 40.0, reward_version="r2")) == []
    assert reasons(stepper.tick(1)) == ["group_mismatch"]


def test_the_first_attempts_of_a_task_wait_until_their_rewards_differ() -> None:
    stepper = stepper_of()
    assert stepper.feed(ticket(0, 0.0), ticket(1, 0.0)) == []
    assert stepper.tick(300) == []
    assert stepper.feed(ticket(2, 1.0)) == []
    groups = groups_in(stepper.tick(1))
    advantages = {group.members[0].trajectory_id: group.members[0].advantage for group in groups}
    assert advantages == {"t0": -0.5, "t1": -0.5, "t2": 1.0}


def test_an_attempt_declared_alone_in_its_group_waits_for_no_others() -> None:
    stepper, groups = stepper_of(), list[Group]()
    for number in range(8):
        alone = {"example_id": "x1", "group_id": f"g{number}", "group_size": 1}
        groups += groups_in(stepper.feed(ticket(number, float(number % 2), **alone)) + stepper.tick(1))
    assert [group.closed_by for group in groups] == ["single"] * 8
    assert all(group.has_signal for group in groups)


def test_equal_first_attempts_have_no_signal_when_the_window_ends() -> None:
    stepper = stepper_of()
    stepper.feed(*(ticket(number, 0.1) for number in range(3)))
    assert stepper.tick(599) == []
    assert [group.has_signal for group in groups_in(stepper.tick(1))] == [False] * 3


def test_a_single_attempt_has_no_signal_when_the_window_ends() -> None:
    stepper = stepper_of()
    stepper.feed(ticket(0, 1.0))
    (group,) = groups_in(stepper.tick(600))
    assert (group.has_signal, group.members[0].expected) == (False, None)


@pytest.mark.parametrize("delay_s", [3, 600, 23 * 3600])
def test_a_verdict_counts_however_late_it_comes(delay_s: int) -> None:
    stepper = stepper_of()
    assert stepper.feed(*(ticket(number, None) for number in range(40))) == []
    stepper.tick(delay_s)
    output_records = stepper.feed(*(verdict(number, float(number % 2)) for number in range(40))) + stepper.tick(1)
    assert kinds(output_records) == ["Group"] * 40
    assert {group.members[0].trajectory_id: group.members[0].reward for group in groups_in(output_records)} == {
        f"t{number}": float(number % 2) for number in range(40)
    }


def test_a_score_without_a_verdict_holds_up_no_other() -> None:
    stepper = stepper_of()
    output_records = stepper.feed(ticket(0, None), ticket(1, 0.0), ticket(2, None), ticket(3, 1.0)) + stepper.tick(1)
    assert [group.members[0].trajectory_id for group in groups_in(output_records)] == ["t1", "t3"]


def test_the_oldest_of_too_many_waiting_scores_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grouping_stage, "MOST_WAITING", 2)
    (drop,) = stepper_of().feed(*(ticket(number, None) for number in range(3)))
    assert (drop.reason, drop.trajectory_ids) == ("score_missing", ("t0",))
    assert drop.detail == "no reward came within 0 ms; 2 newer scores wait, too"


def test_scores_wait_for_a_further_reward_once_rewards_are_known_to_change() -> None:
    stepper = stepper_of()
    stepper.feed(*(ticket(number, 1.0) for number in range(10)))
    stepper.tick(3)
    assert stepper.feed(verdict(0, 0.5)) == []
    assert stepper.tick(0.5) == []
    output_records = stepper.feed(*(verdict(number, 0.5) for number in range(1, 5))) + stepper.tick(1)
    assert sum(group.members[0].reward == 0.5 for group in groups_in(output_records)) == 5
    assert stepper.feed(ticket(10, 1.0)) == []
    stepper.tick(3)
    assert stepper.feed(verdict(10, 0.0)) == []
    assert groups_in(stepper.tick(1))[0].members[0].reward == 0.0


def test_one_change_among_many_late_verdicts_teaches_no_wait() -> None:
    stepper = stepper_of()
    stepper.feed(*(ticket(number, None) for number in range(60)))
    stepper.tick(3)
    stepper.feed(verdict(0, 1.0), verdict(1, 0.0))
    stepper.tick(1)
    stepper.feed(verdict(0, 0.5, revision=2), *(verdict(number, 1.0) for number in range(2, 50)))
    assert kinds(stepper.feed(verdict(50, 1.0))) == ["Group"]


def test_a_change_after_the_window_teaches_no_wait() -> None:
    stepper = stepper_of()
    stepper.feed(ticket(0, 0.0), ticket(1, 1.0))
    stepper.tick(700)
    stepper.feed(verdict(0, 0.5), verdict(1, 0.5))
    assert kinds(stepper.feed(ticket(2, 1.0))) == ["Group"]


def test_attempts_that_come_together_are_one_group_from_the_first() -> None:
    stepper = stepper_of(group_size=4)
    for example in range(3):
        attempts = [make_score(f"e{example}-{number}", float(number), example_id=f"x{example}") for number in range(4)]
        (group,) = groups_in(stepper.feed(*attempts))
        assert (len(group.members), group.closed_by) == (4, "full")


def test_a_lonely_attempt_is_compared_with_the_level_of_its_task() -> None:
    stepper = stepper_of(group_size=4)
    stepper.feed(*(make_score(f"e{number}", float(number % 2)) for number in range(4)))
    assert stepper.feed(make_score("alone", 1.0, example_id="x2")) == []
    (group,) = groups_in(stepper.tick(600))
    assert (group.closed_by, group.members[0].expected_from) == ("single", "task")


def test_a_returning_example_is_expected_to_earn_its_earlier_reward() -> None:
    stepper = stepper_of()
    stepper.feed(ticket(0, 0.0), ticket(1, 1.0), ticket(2, 0.0))
    stepper.tick(1)
    for hour in range(3):
        stepper.tick(3600)
        (group,) = groups_in(stepper.feed(make_score(f"again-{hour}", 1.0, example_id="ticket-1")))
    (member,) = group.members
    assert (member.expected_from, (member.expected or 0) > 0.8) == ("example", True)


@pytest.mark.parametrize("run", [{"resample": {"attempts_per_hour": 10}}, {}])
def test_a_run_that_makes_or_judges_groups_waits_for_their_members(run: dict[str, Any]) -> None:
    rewards = () if run else (RewardConfig(type="judge_relative", name="rank"),)
    stepper = stepper_of(run=run, rewards=rewards)
    stepper.feed(ticket(0, 0.0), ticket(1, 1.0), ticket(2, 0.0))
    assert stepper.tick(599) == []
    assert stepper.feed(make_score("sibling", 1.0, example_id="ticket-0")) == []
    output_records = stepper.tick(1)
    assert (kinds(output_records)[0], len(output_records)) == ("Group" if run else "ClosedGroup", 3)
    assert reasons(output_records) == [] if run else ["incomplete_group"] * 2


def test_every_attempt_of_strategy_single_goes_on_alone() -> None:
    stepper = stepper_of(strategy="single")
    output_records = stepper.feed(*(make_score(f"t{number}", float(number % 2)) for number in range(4))) + stepper.tick(
        1
    )
    assert [len(group.members) for group in groups_in(output_records)] == [1] * 4


@pytest.mark.parametrize("seed", range(20))
def test_a_restart_after_every_record_changes_nothing(seed: int) -> None:
    written = []
    for restoring in (False, True):
        chance, stepper, outputs = random.Random(seed), stepper_of(restoring=restoring, group_size=3), []
        for number in range(60):
            value = chance.choice((None, 0.0, 1.0, 1.0))
            example = chance.choice((f"ticket-{number}", "often", "sometimes"))
            outputs += stepper.feed(ticket(number, value, example_id=example, version=number // 20))
            reward, rows = chance.choice((0.0, 0.5)), stepper.state.scores.rows
            if chance.random() < 0.4 and rows:
                score = rows[min(rows)].score()
                outputs += stepper.feed(replace(score, revision=score.revision + 1, outcome="scored", value=reward))
            if chance.random() < 0.3:
                outputs += stepper.tick(chance.choice((1, 5, 200, 700)))
        written.append(outputs)
    assert written[0] == written[1]
