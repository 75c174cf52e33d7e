"""What time it is by the broker's clock, on a machine whose own clock is wrong, or is set."""

import socket
from dataclasses import dataclass

import pytest

from rollbus.health.clock import BrokerClock
from rollbus.schemas.records.health import Heartbeat
from tests.health.test_picture import NOW_MS, make_beat

MINUTE_MS, HOUR_MS = 60_000, 3_600_000


@dataclass
class Machine:
    """A machine's two clocks: the one that may be set, and the one that only runs."""

    ahead_ms: int = 0
    """Of the broker's."""
    running_ms: int = 0

    def wall_ms(self) -> int:
        return NOW_MS + self.running_ms + self.ahead_ms

    def broker_ms(self) -> int:
        return NOW_MS + self.running_ms


def beat_of(machine: Machine, host: str) -> Heartbeat:
    return make_beat(host=host, beat_at_ms=machine.wall_ms()).heartbeat


@pytest.mark.parametrize("host", [socket.gethostname(), "elsewhere"])
@pytest.mark.parametrize("set_by_ms", [HOUR_MS, -HOUR_MS, 0])
def test_a_clock_that_is_set_between_two_beats_makes_no_process_silent(host: str, set_by_ms: int) -> None:
    machine = Machine(ahead_ms=MINUTE_MS)
    clock = BrokerClock(machine.wall_ms, lambda: machine.running_ms)
    clock.learn(beat_of(machine, host), machine.broker_ms(), is_new=True)
    assert clock.now_ms() == machine.broker_ms()
    machine.running_ms += 2_000
    machine.ahead_ms += set_by_ms
    assert clock.now_ms() == machine.broker_ms()
    machine.running_ms += 3_000
    clock.learn(beat_of(machine, host), machine.broker_ms(), is_new=True)
    assert clock.now_ms() == machine.broker_ms()


def test_an_old_beat_of_another_machine_tells_no_time() -> None:
    machine = Machine(ahead_ms=MINUTE_MS)
    clock = BrokerClock(machine.wall_ms, lambda: machine.running_ms)
    clock.learn(beat_of(machine, "elsewhere"), machine.broker_ms() - HOUR_MS, is_new=False)
    assert (clock.ahead_ms, clock.now_ms()) == (None, machine.wall_ms())
