"""Replays whose first stage runs in several processes: the same records, and nothing left behind when one dies."""

import asyncio
import os
import signal
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rollbus.cli.replay.options import parse_scoring
from rollbus.schemas.errors import ConfigurationError, UnavailableError
from rollbus.settings import Settings
from rollbus.streams.replay.kafka.lanes import LaneProcess
from rollbus.streams.replay.plan.range import Bound
from rollbus.streams.rewards.registry import BUILT_IN
from tests.services.replay.live import frames, write_settings
from tests.services.replay.log import name_of, replay_of
from tests.waiting import until

pytestmark = pytest.mark.services

WRITTEN_TOPICS = ("trajectories", "scores", "run-log", "curriculum", "batches", "drops")
REWARD = "def much(trajectory, context):\n    return float(len(trajectory.turns))\n"


async def written_frames(settings: Settings, name: str) -> dict[str, Any]:
    frames_by_topic = {
        topic: await frames(replay_of(settings, name).replay_settings, topic) for topic in WRITTEN_TOPICS
    }
    return {
        topic: {n: [(key, value.replace(name.encode(), b"NAME")) for key, value in rows] for n, rows in by.items()}
        for topic, by in frames_by_topic.items()
    }


async def test_several_processes_write_what_one_writes(shared_log: Settings, tmp_path: Path) -> None:
    file = tmp_path / "rewards.py"
    file.write_text(REWARD)
    scoring, registry = parse_scoring(f"{file}:much", BUILT_IN)
    result_by_processes = {}
    for processes in (1, 3):
        name = name_of(shared_log, str(processes))  # as long as the other, since locations are in the bytes
        replay = replay_of(shared_log, name, new_scoring=scoring)
        manifest = await replace(replay, registry=registry, processes=processes).run()
        result_by_processes[processes] = (manifest.digests, manifest.records, await written_frames(shared_log, name))
    assert result_by_processes[1] == result_by_processes[3]
    assert all(count > 0 for topic, count in result_by_processes[1][1].items())
    assert set(result_by_processes[1][1]) >= {"trajectories", "scores", "run-log", "drops"}


async def test_several_processes_decide_what_one_decides(shared_log: Settings) -> None:
    late: dict[str, Any] = {"scores": "recorded", "new_scoring": None, "start": Bound(tick=2)}
    of_the_end: dict[str, Any] = {"feedback": "end", "stages": ("assembly",)}
    for changes in (late, of_the_end):
        results = []
        for processes in (1, 2):
            replay = replace(replay_of(shared_log, name_of(shared_log, "dry"), **changes), processes=processes)
            manifest = await replay.run(dry_run=True)
            results.append((manifest.digests, manifest.records, manifest.from_ms, manifest.to_ms, replay.open_rows))
        assert results[0] == results[1]
        assert results[0][1]["trajectories"] > 0


async def test_a_process_that_dies_ends_the_replay_with_its_partitions(
    shared_log: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    lanes: list[Any] = []

    async def start_and_kill(self: Any) -> None:
        lanes.append(self)
        await start_lane(self)
        if len(lanes) == 2:
            os.kill(self._process.pid, signal.SIGKILL)

    start_lane = LaneProcess.start
    monkeypatch.setattr(LaneProcess, "start", start_and_kill)
    replay = replace(replay_of(shared_log, name_of(shared_log, "dies")), processes=2)
    with pytest.raises(UnavailableError, match=r"partitions .* was ended by SIGKILL"):
        await replay.run(dry_run=True)
    first, second = (lane._process.returncode for lane in lanes)
    assert first in (0, -signal.SIGKILL)  # on a slow machine it has done its work before the other one is missed
    assert second == -signal.SIGKILL


async def test_an_error_of_a_replay_process_is_reported_unchanged(shared_log: Settings, tmp_path: Path) -> None:
    file = tmp_path / "rewards.py"
    file.write_text(REWARD)
    scoring, registry = parse_scoring(f"{file}:much", BUILT_IN)
    file.write_text(REWARD + "\n# another one\n")
    replay = replay_of(shared_log, name_of(shared_log, "changed"), new_scoring=scoring)
    with pytest.raises(ConfigurationError, match="was changed while the replay began"):
        await replace(replay, registry=registry, processes=2).run(dry_run=True)


async def test_no_process_outlives_a_replay_that_is_killed(shared_log: Settings, kafka: str, tmp_path: Path) -> None:
    write_settings(tmp_path, kafka, shared_log.namespace)
    program = (
        "import asyncio, os, signal, sys; from pathlib import Path; from dataclasses import replace;"
        "from tests.services.replay.live import settings_of; from tests.services.replay.log import replay_of;"
        "from rollbus.streams.replay.kafka.lanes import LaneProcess\n"
        "async def never(self):\n print(self._process.pid, flush=True)\n await asyncio.Event().wait()\n"
        "LaneProcess.read = never\n"
        f"made = settings_of(Path({str(tmp_path / 'rollbus.yaml')!r}))\n"
        "asyncio.run(replace(replay_of(made, 'orphan'), processes=2).run(dry_run=True))\n"
    )
    parent = await asyncio.create_subprocess_exec(sys.executable, "-c", program, stdout=asyncio.subprocess.PIPE)
    assert parent.stdout is not None
    try:
        child = int(await parent.stdout.readline())
    finally:
        parent.kill()
        await parent.wait()
    await until(lambda: not alive(child), "a process outlives the replay")


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"
    except FileNotFoundError:
        return False
