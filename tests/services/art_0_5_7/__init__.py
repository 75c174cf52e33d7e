"""A program that uses ART 0.5.7's own client, the last one that trains over HTTP, run beside the installed release.

The release is its own package without dependencies in a folder of its own, first on the path of a process of its own;
what it imports is what is installed here.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from rollbus.local.process.tether import tethered

ROOT = Path(__file__).parents[3]
FOLDER = Path(__file__).parent
IMPORT_S = 240.0
"""Longest time for all of it: most of it is ART's import, where every processor is busy."""


def run_client(url: str) -> Any:
    """Run the program against a server, and return what it reports."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(_release()),
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "WANDB_MODE": "disabled",
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
    }
    command = [*tethered(), sys.executable, "-W", "ignore", str(FOLDER / "client.py"), url]
    done = subprocess.run(
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=IMPORT_S,
        check=False,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    assert lines, done.stderr
    return json.loads(lines[-1])


def _release() -> Path:
    """Return the folder that holds the release; it is fetched from PyPI the first time, and checked by its hash."""
    folder = ROOT / ".make" / "art-0.5.7"
    if not (folder / "art").exists():
        uv = Path(sys.executable).with_name("uv")
        asked = ["--target", str(folder), "--no-deps", "--require-hashes", "-r", str(FOLDER / "requirements.txt")]
        subprocess.run([uv, "pip", "install", "-q", *asked], check=True, env={**os.environ, "VIRTUAL_ENV": ""})
    return folder
