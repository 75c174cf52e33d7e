"""A program that uses ART 0.5.7's own client, the last one that trains over HTTP."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from rollbus.local.process.tether import tethered
from tests.services.art.releases import environment_of

FOLDER = Path(__file__).parent
IMPORT_S = 240.0
"""Longest time for all of it: most of it is ART's import, where every processor is busy."""


def run_client(url: str) -> Any:
    """Run the program against a server, and return what it reports."""
    command = [*tethered(), sys.executable, "-W", "ignore", str(FOLDER / "client.py"), url]
    done = subprocess.run(
        command,
        env=environment_of("0.5.7"),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=IMPORT_S,
        check=False,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    assert lines, done.stderr
    return json.loads(lines[-1])
