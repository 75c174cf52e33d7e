"""SIGTERM of a program that handles no signal: with a spool nothing is lost that was emitted."""

import signal
import subprocess
import sys
import textwrap
from pathlib import Path

from rollbus.schemas.records.events import ToolCalled
from tests.producers.recorded import read_spool

PROGRAM = """
    import os, signal, sys, time
    import rollbus

    recorder = rollbus.init(bootstrap_servers="127.0.0.1:9", spool_folder=sys.argv[1])
    with recorder.episode(task="t") as episode:
        for number in range(300):
            episode.tool("count", arguments={"number": number})
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(600)
"""
HANDLED = """
    import os, signal, sys
    import rollbus

    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(7))
    recorder = rollbus.init(bootstrap_servers="127.0.0.1:9", spool_folder=sys.argv[1])
    with recorder.episode(task="t") as episode:
        episode.tool("count")
        os.kill(os.getpid(), signal.SIGTERM)
"""
TWICE = """
    import os, signal, sys, time
    import rollbus

    recorder = rollbus.init(bootstrap_servers="127.0.0.1:9", spool_folder=sys.argv[1])
    recorder.flush = lambda timeout: time.sleep(600)
    os.kill(os.getpid(), signal.SIGTERM)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(600)
"""


def end_of(program: str, folder: Path) -> int:
    script = [sys.executable, "-W", "ignore", "-c", textwrap.dedent(program), str(folder)]
    return subprocess.run(script, capture_output=True, timeout=120, check=False).returncode


def tools_in(folder: Path) -> list[str]:
    """The arguments of the tool calls on disk."""
    return [event.arguments for event in read_spool(folder) if isinstance(event, ToolCalled)]


def test_what_was_emitted_is_on_disk_and_the_process_ends_by_the_signal(tmp_path: Path) -> None:
    assert end_of(PROGRAM, tmp_path) == -signal.SIGTERM
    assert tools_in(tmp_path) == [f'{{"number":{number}}}' for number in range(300)]


def test_a_program_that_handles_it_keeps_its_own_way(tmp_path: Path) -> None:
    assert end_of(HANDLED, tmp_path) == 7
    assert len(tools_in(tmp_path)) == 1


def test_a_second_one_ends_a_process_whose_flush_hangs(tmp_path: Path) -> None:
    assert end_of(TWICE, tmp_path) == -signal.SIGTERM
