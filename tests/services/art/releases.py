"""Releases of ART in addition to the installed one: each is a package without dependencies in a folder of its own.

First on the path of a process of its own; what it imports is what is installed here.
"""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parents[3]
HASHES = {
    "0.5.7": "dee8f49bd5d03abb1be3c82164be5bcba7677090c7659a8788245f097bd59ecc",
    "0.5.17": "97b552444adbefe95807e24199190517e29a068e281bac2299e0678936be9f63",
}
"""The last release with an HTTP client of its own, and the last whose models have `train`, which the toolkit calls."""


def environment_of(version: str, *folders: Path) -> Mapping[str, str]:
    """Return the environment of a process that uses a release, with further folders on its path."""
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(map(str, (_release(version), *folders))),
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "WANDB_MODE": "disabled",
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
    }


def _release(version: str) -> Path:
    """Return the folder that holds a release; it is fetched from PyPI the first time, and checked by its hash."""
    folder = ROOT / ".make" / f"art-{version}"
    if not (folder / "art").exists():
        uv = Path(sys.executable).with_name("uv")
        options = ["--target", str(folder), "--no-deps", "--require-hashes", "-r", "-"]
        subprocess.run(
            [uv, "pip", "install", "-q", *options],
            input=f"openpipe-art=={version} --hash=sha256:{HASHES[version]}",
            text=True,
            check=True,
            env={**os.environ, "VIRTUAL_ENV": ""},
        )
    return folder
