"""Which processes live, for who starts those that are missing: the last beat of a killed one still counts a while."""

import os
import socket
import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest

from rollbus.health.picture import Look, Picture
from rollbus.health.reading import HealthReader
from rollbus.runtime.health.alarms.limits import AlarmLimits
from rollbus.runtime.health.alarms.processes import Beat
from rollbus.settings import Settings
from rollbus.start import processes
from rollbus.start.parts import Part
from tests.health.test_picture import NOW_MS, draw, make_beat


def gone_pid() -> int:
    """The number of a process that was there."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def beat_of(kind: str, pid: int, age_s: float = 0.02) -> Beat:
    return make_beat(kind, age_s=age_s, host=socket.gethostname(), pid=pid, interval_ms=10)


class Looks(HealthReader):
    """Sees, look after look, these beats."""

    def __init__(self, *looks: list[Beat]) -> None:
        super().__init__("", None, None, (), {}, AlarmLimits(), lambda: NOW_MS)  # type: ignore[arg-type]
        self._looks = list(looks)
        self._clock.ahead_ms = 0

    async def _look(self) -> Look:
        beats = self._looks.pop(0) if len(self._looks) > 1 else self._looks[0]
        self._beats = {beat.heartbeat.process: beat for beat in beats}
        return Look(now_ms=NOW_MS, beats=beats)


async def kinds(*looks: list[Beat]) -> list[Any]:
    return sorted(process.kind for process in await Looks(*looks).living_processes())


async def test_a_process_that_was_killed_a_moment_ago_does_not_count() -> None:
    beats = [beat_of("worker", gone_pid()), beat_of("sink", os.getpid())]
    assert await kinds(beats) == ["sink"]


def test_a_killed_process_is_not_taken_for_the_one_that_starts_in_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    async def read(*beats: Beat) -> Picture:
        return draw(*beats)

    for beats, is_ready in (([gone_pid()], False), ([gone_pid(), os.getpid()], True)):
        picture = read(*(replace(beat_of("worker", pid), taken_ms=NOW_MS) for pid in beats))
        monkeypatch.setattr(processes, "read_health", lambda *_, picture=picture: picture)
        assert processes._beats(Settings(), Part("worker", False, "")) is is_ready


async def test_a_process_of_another_container_lives_by_its_next_beat() -> None:
    pid = gone_pid()
    assert await kinds([beat_of("worker", pid)], [beat_of("worker", pid, age_s=0.01)]) == ["worker"]


async def test_a_process_of_another_machine_counts_by_its_beat_alone() -> None:
    assert await kinds([make_beat("trainer")]) == ["trainer"]
