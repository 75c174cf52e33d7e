"""Ctrl-C while the art-server starts: importing ART takes long, and nobody waits for its end."""

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from rollbus.local.process.ports import find_free_port
from tests.console import ROLLBUS, without_settings
from tests.waiting import wait_until

PATIENCE_S = 240.0


@pytest.mark.slow
@pytest.mark.parametrize("after_s", [0.2, 3.0], ids=["before ART's libraries", "when they have handlers of their own"])
def test_ctrl_c_ends_a_starting_art_server_at_once_and_silently(tmp_path: Path, after_s: float) -> None:
    (tmp_path / "config.json").write_text("{}")
    for name in ("tokenizer.json", "model.safetensors"):
        (tmp_path / name).touch()
    command: list[str | Path] = [ROLLBUS, "art-server", "run", "--base-model", tmp_path]
    ports = {"ROLLBUS_STACK__ART_PORT": str(find_free_port()), "ROLLBUS_STACK__MODEL_PORT": str(find_free_port())}
    environment = {**os.environ, **ports, "ROLLBUS_ART_SERVER__DIRECTORY": str(tmp_path / "art")}
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=tmp_path, env=environment)

    def has_claimed_its_port() -> bool:
        assert process.poll() is None, process.communicate()[1]
        return any("socket:" in link for link in _open_files(process.pid))

    try:  # the port is claimed before ART is imported
        wait_until(has_claimed_its_port, "the art-server does not claim its port", within_s=PATIENCE_S)
        time.sleep(after_s)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=120)
    finally:
        process.kill()
        process.wait()
    assert (process.returncode, without_settings(errors)) == (-signal.SIGINT, "")


def _open_files(process_id: int) -> Iterator[str]:
    for entry in Path(f"/proc/{process_id}/fd").iterdir():
        with suppress(OSError):  # closed meanwhile
            yield str(entry.readlink())
