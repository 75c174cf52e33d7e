"""ART 0.5.7, the last release whose HTTP client and server belong together, run beside the installed one.

A release is its own package without dependencies in a folder of its own, first on the path of a process of its own;
what it imports is what is installed here.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from rollbus.local.tether import tethered

ROOT = Path(__file__).parents[3]
FOLDER = Path(__file__).parent


def release(version: str) -> Path:
    """The folder that holds this release; fetched from PyPI the first time, and checked by its hash."""
    folder = ROOT / ".make" / "released-art" / version
    if not (folder / "art").exists():
        uv = Path(sys.executable).with_name("uv")
        asked = ["--target", str(folder), "--no-deps", "--require-hashes", "-r", str(FOLDER / f"{version}.txt")]
        subprocess.run([uv, "pip", "install", "-q", *asked], check=True, env={**os.environ, "VIRTUAL_ENV": ""})
    return folder


def start(version: str, script: str, *arguments: str) -> subprocess.Popen[str]:
    """Run a script of this folder with that release; it writes JSON lines."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(release(version)),
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "WANDB_MODE": "disabled",
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
    }
    command = [*tethered(), sys.executable, "-W", "ignore", str(FOLDER / script), *arguments]
    return subprocess.Popen(
        command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def run(version: str, script: str, *arguments: str) -> Any:
    """The last JSON line that the script writes."""
    output, errors = start(version, script, *arguments).communicate(timeout=120)
    lines = [line for line in output.splitlines() if line.startswith("{")]
    assert lines, errors
    return json.loads(lines[-1])
