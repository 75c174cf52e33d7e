"""Ctrl-C on the demo leaves nothing running."""

import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

from rollbus.demo.base_model import WarmStartSettings, base_model_folder
from tests.console import ROLLBUS

pytestmark = [pytest.mark.services, pytest.mark.timeout(900)]

SEED = 3
PARTS = ("kafka", "clickhouse", "art-server", "worker", "sink", "trainer")
START_S, END_S = 400.0, 120.0


def processes_of(data_dir: Path) -> dict[int, str]:
    """Every process whose command line names the folder, by pid."""
    command_by_pid = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:  # it has just ended
                continue
            if str(data_dir) in command:
                command_by_pid[int(entry.name)] = command
    return command_by_pid


def test_ctrl_c_while_everything_runs_leaves_nothing_running(tmp_path: Path, art_base_model: Path) -> None:
    data_dir = tmp_path / "demo"
    # A base model with random weights in the place of the taught one, which takes half a minute to make.
    shutil.copytree(art_base_model, base_model_folder(WarmStartSettings(seed=SEED), data_dir / "models"))
    output = tmp_path / "output"
    with output.open("wb") as out:
        demo = subprocess.Popen(
            [ROLLBUS, "demo", "--job", "game", "--seed", str(SEED), "--data-dir", str(data_dir)],
            stdout=out, stderr=out, cwd=tmp_path, start_new_session=True,
        )  # fmt: skip
    try:
        logs = data_dir / f"seed-{SEED}" / "logs"
        deadline = time.monotonic() + START_S
        while not all((logs / f"{part}.log").exists() for part in PARTS):
            assert demo.poll() is None, output.read_text()
            assert time.monotonic() < deadline, output.read_text()
            time.sleep(0.2)
        assert len(processes_of(data_dir)) >= len(PARTS)

        os.killpg(demo.pid, signal.SIGINT)  # what a terminal does: to the whole foreground group

        assert demo.wait(END_S) != 0
        assert processes_of(data_dir) == {}
        assert "Traceback" not in output.read_text()
    finally:
        if demo.poll() is None:
            os.killpg(demo.pid, signal.SIGKILL)  # its parts end with it
            demo.wait()
