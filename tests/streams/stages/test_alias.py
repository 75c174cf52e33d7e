"""A reward by alias reaches its episode, whichever came first, or is counted."""

from dataclasses import replace

from rollbus.schemas.records.config import AssemblyConfig, ScoringConfig
from rollbus.streams.stages.alias import AliasStage
from tests.builders import make_alias, make_alias_reward, make_config
from tests.stepper import Stepper, reasons


def aliasing() -> Stepper:
    stepper = Stepper(AliasStage(AssemblyConfig(late_horizon_ms=100_000)))
    stepper.tick()
    return stepper


def test_a_reward_gets_the_episode_of_its_alias_and_no_sequence() -> None:
    stepper = aliasing()
    stepper.feed(make_alias("order-1", "e1", root="e0"))
    (out,) = stepper.outputs([make_alias_reward("order-1", 0.5)])
    assert (out.topic.name, out.key) == ("episode-events", "e0")
    assert (out.record.episode_id, out.record.sequence, out.record.value) == ("e1", -1, 0.5)


def test_a_reward_that_comes_first_waits_for_its_alias() -> None:
    stepper = aliasing()
    assert stepper.feed(make_alias_reward("order-1", 0.1, key="a"), make_alias_reward("order-1", 0.2, key="b")) == []
    stepper.restore()
    assert [reward.value for reward in stepper.feed(make_alias("order-1"))] == [0.1, 0.2]


def test_repeated_rewards_and_declarations_change_nothing() -> None:
    stepper = aliasing()
    first, second = make_alias("a", "e1"), make_alias("a", "e2")
    reward = make_alias_reward("a")
    stepper.feed(first)
    assert [record.episode_id for record in stepper.feed(reward, reward, second, reward)] == ["e1"]
    assert [record.episode_id for record in stepper.feed(first, make_alias_reward("a", key="new"))] == ["e2"]


def test_another_verdict_under_the_key_of_an_earlier_one_is_counted_once_and_does_not_count() -> None:
    stepper = aliasing()
    first, sent_again = (
        make_alias_reward("a", 1.0),
        replace(make_alias_reward("a", 1.0), occurred_at_ms=2, writer_id="w"),
    )
    changed = make_alias_reward("a", 0.0)
    assert stepper.feed(first, sent_again) == []
    assert reasons(stepper.feed(changed)) == ["duplicate_conflict"]
    stepper.restore()
    assert stepper.feed(changed, sent_again) == []
    assert [reward.value for reward in stepper.feed(make_alias("a"))] == [1.0]
    assert reasons(stepper.feed(make_alias_reward("a", 0.5))) == ["duplicate_conflict"]


def test_an_alias_that_never_comes_is_a_drop_after_the_horizon() -> None:
    stepper = aliasing()
    stepper.feed(make_alias_reward("nobody"))
    assert stepper.tick(99) == []
    assert reasons(stepper.tick(1)) == ["unresolved_alias"]
    stepper.tick(100)
    assert [key for key in stepper.changelog if not key.startswith(b"clock")] == []


def test_the_horizon_is_the_one_that_the_log_names_over_restarts() -> None:
    stepper = aliasing()
    stepper.feed(make_alias("a"), make_alias_reward("nobody"))
    stepper.feed(
        make_config("scoring", ScoringConfig()), make_config("assembly", AssemblyConfig(late_horizon_ms=10_000))
    )
    stepper.restore()
    assert stepper.tick(9) == []
    assert reasons(stepper.tick(1)) == ["unresolved_alias"]
    assert [key for key in stepper.changelog if key.startswith((b"alias", b"seen"))] == []
