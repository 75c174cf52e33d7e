"""A paused episode waits for what resumes it, which another process writes under the pause's name."""

from dataclasses import replace
from typing import Any

import pytest

from rollbus.schemas.ids import pause_name
from rollbus.schemas.records.config import AssemblyConfig
from rollbus.schemas.records.drops import Drop
from rollbus.schemas.records.trajectories import Trajectory
from rollbus.streams.stages.alias import AliasStage
from rollbus.streams.stages.assembly.stage import AssemblyStage
from tests.builders import make_alias, make_closed, make_ended, make_started, make_turn
from tests.stepper import Stepper, reasons

SETTINGS = AssemblyConfig(inactivity_ms=30_000, pause_ms=3_600_000, late_horizon_ms=100_000)
NAME = pause_name("thread/7")
FIRST = [make_started("e1"), make_turn("e1", 1), replace(make_closed("e1", 2), paused=True)]
RESUMED_EVENTS = [
    make_turn(NAME, 0, writer="w2"),
    make_ended(NAME, 1, writer="w2", writer_ids=("w2",)),
    make_closed(NAME, 2, writer="w2"),
]
SUB_AGENT = f"{NAME}//11111111-1111-4111-8111-111111111111"


class Log:
    """Alias and assembly, a partition each."""

    def __init__(self, *, restoring: bool = False) -> None:
        self.alias = Stepper(AliasStage(SETTINGS), restoring=restoring)
        self.assembly = Stepper(AssemblyStage(SETTINGS), restoring=restoring)
        self.tick()

    def tick(self, seconds: float = 0) -> list[Any]:
        dropped = [record for record in self.alias.tick(seconds) if isinstance(record, Drop)]
        return [*dropped, *self.assembly.tick(seconds)]

    def events(self, *events: Any) -> list[Any]:
        return self.assembly.feed(*events)

    def aliases(self, *events: Any) -> list[Any]:
        return self.assembly.feed(*self.alias.feed(*events))


@pytest.mark.parametrize("restoring", [False, True])
def test_an_episode_resumed_hours_later_is_one_trajectory(restoring: bool) -> None:
    log = Log(restoring=restoring)
    assert log.aliases(make_alias(NAME, "e1")) == log.events(*FIRST) == []
    assert log.tick(3_000) == []
    (trajectory,) = log.aliases(*RESUMED_EVENTS, *RESUMED_EVENTS)
    assert isinstance(trajectory, Trajectory)
    assert (trajectory.episode_id, trajectory.closed_by, len(trajectory.turns)) == ("e1", "ended", 2)
    assert trajectory.trainable
    assert trajectory.partial == ()


def test_events_that_come_before_their_pause_wait_for_it() -> None:
    log = Log()
    assert log.aliases(*RESUMED_EVENTS) == log.events(*FIRST) == []
    (trajectory,) = log.aliases(make_alias(NAME, "e1"))
    assert (trajectory.episode_id, len(trajectory.turns)) == ("e1", 2)


def test_an_episode_that_nothing_resumes_is_given_up_after_its_pause() -> None:
    log = Log()
    log.aliases(make_alias(NAME, "e1"))
    log.events(*FIRST)
    assert log.tick(3_599) == []
    (trajectory,) = log.tick(1)
    assert (trajectory.closed_by, trajectory.stop_reason, len(trajectory.turns)) == ("pause", None, 1)
    assert reasons(log.aliases(RESUMED_EVENTS[0])) == []
    assert reasons(log.tick(100)) == ["unresolved_alias"]


def test_an_episode_may_pause_again_under_its_name() -> None:
    log = Log()
    log.aliases(make_alias(NAME, "e1"))
    log.events(*FIRST)
    log.tick(3_000)
    again = replace(make_closed(NAME, 1, writer="w2"), paused=True)
    assert log.aliases(RESUMED_EVENTS[0], make_alias(NAME, NAME, 1), again) == []
    assert log.tick(3_000) == []
    (trajectory,) = log.aliases(make_ended(NAME, 0, writer="w3"), make_closed(NAME, 1, writer="w3"))
    assert (trajectory.episode_id, trajectory.closed_by, len(trajectory.turns)) == ("e1", "ended", 2)


def test_a_sub_agent_of_a_resumed_episode_belongs_to_its_root() -> None:
    log = Log()
    log.aliases(make_alias(NAME, "e1"))
    log.events(*FIRST)
    start = make_started(SUB_AGENT, writer="w2", root=NAME)
    begun = replace(start, parent_episode_id=NAME)
    (resolved,) = log.alias.feed(begun)
    assert (resolved.episode_id, resolved.root_episode_id) == (SUB_AGENT.replace(NAME, "e1"), "e1")
    assert (resolved.parent_episode_id, resolved.sequence) == ("e1", begun.sequence)
    assert resolved.episode_started_at_ms == begun.episode_started_at_ms


def test_a_pause_outlives_the_late_horizon_of_other_aliases() -> None:
    log = Log()
    log.aliases(make_alias(NAME, "e1"), make_alias("order", "e1", 1))
    log.tick(3_599)
    assert [key for key in log.alias.changelog if key.startswith(b"alias")] == [b"alias\x1f" + NAME.encode()]
    log.tick(1)
    assert not [key for key in log.alias.changelog if key.startswith(b"alias")]
