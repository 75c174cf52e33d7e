"""Services end with the block that started them, however the block ends."""

import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from rollbus.local.process.processes import ProcessIdentity, identify, is_running
from rollbus.local.process.service import Service
from rollbus.local.process.supervisor import Supervisor
from rollbus.schemas.errors import ConfigurationError, UnavailableError
from tests.waiting import wait_until

PROGRAM = """
import sys, time
from pathlib import Path
from rollbus.local.process.service import Service
from rollbus.local.process.supervisor import Supervisor

def sleeper(name):
    return Service(name=name, command=lambda: [sys.executable, "-c", "import time; time.sleep(60)"], is_healthy=bool)

with Supervisor(log_dir=Path(sys.argv[1])) as supervisor:
    pids = [supervisor.start(sleeper(name)).identity.pid for name in ("a", "b")]
    print(*pids, flush=True)
    time.sleep(60)
"""

EVALUATING = """
import asyncio, os, signal, sys
from pathlib import Path
from rollbus.local.process.supervisor import Supervisor
from rollbus.trainer.validation.settings import PlayLimits
from rollbus.trainer.validation.agents import EvaluationContext, EvaluationTask
from rollbus.trainer.validation.playing import play_tasks

async def agent(task, context):
    print("asked", flush=True)
    os.kill(os.getpid(), signal.SIGTERM)
    await asyncio.sleep(60)

with Supervisor(log_dir=Path(sys.argv[1])):
    task = EvaluationTask(0, "example", 0, 0)
    asyncio.run(play_tasks(agent, [task], EvaluationContext("agent@0", ""), limits=PlayLimits()))
"""


def sleeper(name: str, seconds: float = 60) -> Service:
    return Service(
        name=name,
        command=lambda: [sys.executable, "-c", f"import time; time.sleep({seconds}); raise SystemExit('done for')"],
        is_healthy=lambda: True,
    )


def until_gone(identity: ProcessIdentity) -> None:
    wait_until(lambda: not is_running(identity), f"{identity} still runs")


def test_all_services_end_with_the_block(tmp_path: Path) -> None:
    with Supervisor(log_dir=tmp_path) as supervisor:
        identities = [supervisor.start(sleeper(name)).identity for name in ("a", "b")]
        supervisor.wait()
        supervisor.check()
        assert all(identity is not None and is_running(identity) for identity in identities)
    assert not any(identity is not None and is_running(identity) for identity in identities)


def test_a_service_that_ends_is_noticed_with_its_last_words(tmp_path: Path) -> None:
    with Supervisor(log_dir=tmp_path) as supervisor:
        process = supervisor.start(sleeper("short", 0))
        assert process.identity is not None
        until_gone(process.identity)
        with pytest.raises(UnavailableError, match=r"(?s)short ended with exit code 1.*done for"):
            supervisor.has_ended("short")
        with pytest.raises(UnavailableError, match=r"(?s)short has ended with exit code 1.*done for"):
            supervisor.check()
        supervisor.start(sleeper("short"))
        supervisor.check()


def test_a_service_may_end_by_itself_when_its_work_is_done(tmp_path: Path) -> None:
    agent = Service(name="agent", command=lambda: [sys.executable, "-c", ""], is_healthy=lambda: True, may_end=True)
    with Supervisor(log_dir=tmp_path) as supervisor:
        process = supervisor.start(agent)
        assert process.identity is not None
        until_gone(process.identity)
        assert supervisor.has_ended("agent")
        supervisor.check()
        worker = supervisor.start(replace(agent, name="worker", may_end=False))
        assert worker.identity is not None
        until_gone(worker.identity)
        with pytest.raises(UnavailableError, match="worker has ended with exit code 0"):
            supervisor.check()


def test_a_stopped_service_can_be_started_again(tmp_path: Path) -> None:
    with Supervisor(log_dir=tmp_path) as supervisor:
        first = supervisor.start(sleeper("a")).identity
        with pytest.raises(ConfigurationError, match="'a' is running already"):
            supervisor.start(sleeper("a"))
        supervisor.stop("a")
        assert first is not None
        assert not is_running(first)
        supervisor.check()
        assert supervisor.start(sleeper("a")).identity != first


@pytest.mark.parametrize(
    ("number", "first_lines"),
    [
        (signal.SIGINT, ["ending b", "ending a"]),
        (signal.SIGTERM, ["SIGTERM: ending", "ending b", "ending a"]),
        (signal.SIGHUP, ["SIGHUP: ending", "ending b", "ending a"]),
        (signal.SIGKILL, []),
    ],
)
def test_no_signal_leaves_a_service_behind(tmp_path: Path, number: signal.Signals, first_lines: list[str]) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(tmp_path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as program:
        assert program.stdout is not None
        assert program.stderr is not None
        identities = [identify(int(pid)) for pid in program.stdout.readline().split()]
        assert len(identities) == 2
        os.kill(program.pid, number)
        assert program.wait(timeout=120) != 0
        assert program.stderr.read().splitlines()[: len(first_lines)] == first_lines
    for identity in identities:
        assert identity is not None
        until_gone(identity)


def test_a_signal_during_an_evaluation_is_not_the_agents_failure(tmp_path: Path) -> None:
    program = subprocess.run(
        [sys.executable, "-c", EVALUATING, str(tmp_path)], capture_output=True, text=True, timeout=120
    )
    assert (program.stdout, program.returncode) == ("asked\n", 128 + signal.SIGTERM), program.stderr
