"""The environments of the readers: each is made once, in `.venv-readers/NAME`, from its pinned requirements.

A trainer named in a line `# without its requirements: NAME==VERSION` is installed alone: its loader needs none of the
packages of clusters and GPUs. Torch is that of the project, so that nothing large is fetched.
"""

import fcntl
import hashlib
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
REQUIREMENTS = Path(__file__).parent / "requirements"
ALONE = "# without its requirements: "


def python_of(name: str) -> Path:
    """Return a reader's Python; make its environment if it is missing or its requirements have changed."""
    folder = ROOT / ".venv-readers" / name
    listing = REQUIREMENTS / f"{name}.txt"
    digest = hashlib.sha256(listing.read_bytes()).hexdigest()
    folder.parent.mkdir(exist_ok=True)
    with (folder.parent / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        mark = folder / "requirements.sha256"
        if not mark.exists() or mark.read_text() != digest:
            uv, environment = Path(sys.prefix) / "bin" / "uv", {**os.environ, "VIRTUAL_ENV": ""}
            _run([uv, "venv", "-q", "--clear", "--python", sys.executable, folder], environment)
            install = [uv, "pip", "install", "-q", "--python", folder / "bin" / "python"]
            _run([*install, "-r", listing], environment)
            for line in listing.read_text().splitlines():
                if line.startswith(ALONE):
                    _run([*install, "--no-deps", line.removeprefix(ALONE)], environment)
            mark.write_text(digest)
    return folder / "bin" / "python"


def run_check(name: str, check: str, *arguments: object) -> str:
    """Run a module of `in_reader` with a reader's Python; return what it printed."""
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("PYTEST")},
        "PYTHONPATH": str(ROOT),
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "CUDA_VISIBLE_DEVICES": "",
    }
    return _run([python_of(name), "-m", f"tests.readers.in_reader.{check}", *arguments], environment)


def _run(command: list[object], environment: dict[str, str]) -> str:
    done = subprocess.run(list(map(str, command)), env=environment, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, f"{command}\n{done.stdout[-4000:]}\n{done.stderr[-8000:]}"
    return done.stdout
