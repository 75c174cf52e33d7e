"""A process is known again, ended with all it started, and never mistaken for one that got its number."""

import os
import signal
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from rollbus.local.process.processes import (
    ProcessIdentity,
    anything_left,
    describe,
    end,
    exit_code,
    identify,
    is_running,
    session_members,
    spawn,
)
from rollbus.schemas.errors import ConfigurationError
from tests.waiting import wait_until

SLEEP = [sys.executable, "-c", "import time; time.sleep(60)"]
STUBBORN_WITH_CHILD = [
    sys.executable,
    "-c",
    "import signal, subprocess, sys, time\n"
    "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
    "print('ready', flush=True)\n"
    "time.sleep(60)",
]
DYING_WITH_CHILD = [
    sys.executable,
    "-c",
    "import subprocess, sys\nsubprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])",
]


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "logs" / "child.log"


@pytest.fixture
def sleeper(log: Path) -> Iterator[ProcessIdentity]:
    identity = spawn(SLEEP, log_path=log)
    yield identity
    end(identity, grace_s=5)


def test_a_process_keeps_no_file_that_the_caller_has_open(log: Path) -> None:
    """A script that holds a lock while it runs a command would else hold it as long as the stack is up."""
    reading, writing = os.pipe()
    os.set_inheritable(writing, True)
    identity = spawn(SLEEP, log_path=log)
    os.close(writing)
    assert os.read(reading, 1) == b""
    os.close(reading)
    end(identity, grace_s=5)


def test_a_started_process_runs_until_it_is_ended(sleeper: ProcessIdentity) -> None:
    assert is_running(sleeper)
    assert identify(sleeper.pid) == sleeper
    assert os.getsid(sleeper.pid) == sleeper.pid
    assert end(sleeper)
    assert not is_running(sleeper)
    assert not end(sleeper)


def test_another_process_with_the_same_number_is_left_alone(sleeper: ProcessIdentity) -> None:
    earlier = replace(sleeper, start_ticks=sleeper.start_ticks - 1)
    before_the_reboot = replace(sleeper, boot_id="another boot")
    for stranger in (earlier, before_the_reboot):
        assert not is_running(stranger)
        assert not end(stranger)
    assert is_running(sleeper)


def test_a_process_that_ignores_sigterm_is_killed_with_its_children(log: Path) -> None:
    identity = spawn(STUBBORN_WITH_CHILD, log_path=log)
    wait_until(lambda: "ready" in log.read_text(), "it does not start")
    assert len(session_members(identity.pid)) == 2
    assert end(identity, grace_s=0.1)
    assert session_members(identity.pid) == ()


def test_children_that_outlive_their_parent_are_ended_too(log: Path) -> None:
    identity = spawn(DYING_WITH_CHILD, log_path=log)
    wait_until(lambda: not is_running(identity), "it still runs")
    assert anything_left(identity)
    assert end(identity)
    assert session_members(identity.pid) == ()


def test_the_exit_code_of_a_reaped_process_stays_known(log: Path) -> None:
    failed = spawn([sys.executable, "-c", "raise SystemExit(3)"], log_path=log)
    wait_until(lambda: not is_running(failed), "it still runs")
    assert (exit_code(failed), exit_code(failed)) == (3, 3)
    killed = spawn(SLEEP, log_path=log)
    assert exit_code(killed) is None
    end(killed, grace_s=0)
    assert exit_code(killed) in {-signal.SIGTERM, -signal.SIGKILL}


def test_a_process_whose_threads_still_run_is_not_gone(log: Path) -> None:
    # The main thread alone ends, so the process shows as a zombie while it still holds its files.
    program = (
        "import ctypes, threading, time\n"
        "threading.Thread(target=time.sleep, args=(60,)).start()\n"
        "print('ready', flush=True)\n"
        "ctypes.CDLL(None).pthread_exit(None)"
    )
    identity = spawn([sys.executable, "-c", program], log_path=log)
    wait_until(lambda: "ready" in log.read_text(), "it does not start")
    wait_until(lambda: Path(f"/proc/{identity.pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z", "no zombie")
    assert is_running(identity)
    assert end(identity)
    assert not is_running(identity)


def test_a_missing_program_is_named(log: Path) -> None:
    with pytest.raises(ConfigurationError, match="no-such-program"):
        spawn(["no-such-program"], log_path=log)


def test_a_process_is_described_by_its_command_line(sleeper: ProcessIdentity) -> None:
    wait_until(lambda: "time.sleep" in describe(sleeper.pid), "its command is not known")
    assert describe(sleeper.pid).startswith(f"{sleeper.pid} (")
