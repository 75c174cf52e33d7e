"""Environments of other programs, apart from the project's own, each made once from pinned requirements.

A program named in a line `# without its requirements: NAME==VERSION` is installed alone: what is tested of it needs
none of the packages of clusters and GPUs. Torch is mostly that of the project, so that nothing large is fetched.
"""

import fcntl
import hashlib
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
ALONE = "# without its requirements: "


def make_environment(name: str, listing: Path, overrides: Path | None = None) -> Path:
    """Return the Python of the environment `.venv-NAME`; make it if it is missing or its requirements have changed.

    `overrides` lists requirements in the place of those that packages have; without it, those of the project hold.
    """
    folder, lock_file = ROOT / f".venv-{name}", ROOT / ".make" / f"{name}.lock"
    python, mark = folder / "bin" / "python", folder / "requirements.sha256"
    sources = [listing] if overrides is None else [listing, overrides]
    digest = hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()
    lock_file.parent.mkdir(parents=True, exist_ok=True)
    with lock_file.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not mark.exists() or mark.read_text() != digest:
            uv: list[object] = [Path(sys.prefix) / "bin" / "uv"]
            install = [*uv, "pip", "install", "-q", "--python", python]
            replacing = [] if overrides is None else ["--no-config", "--override", overrides]
            run_command([*uv, "venv", "-q", "--clear", "--python", sys.executable, folder])
            run_command([*install, *replacing, "-r", listing])
            for line in listing.read_text().splitlines():
                if line.startswith(ALONE):
                    run_command([*install, "--no-deps", line.removeprefix(ALONE)])
            mark.write_text(digest)
    return python


def run_command(command: list[object], **variables: str) -> str:
    """Run a command from the checkout; return what it printed, or fail with the end of it."""
    completed = subprocess.run(
        list(map(str, command)), env=outside_environment(**variables), cwd=ROOT, capture_output=True, text=True
    )
    assert completed.returncode == 0, f"{command}\n{completed.stdout[-4000:]}\n{completed.stderr[-8000:]}"
    return completed.stdout


def outside_environment(**variables: str) -> dict[str, str]:
    """Return the variables of a program in another environment: nothing points at this one, a hub or a GPU."""
    inherited = {
        name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "PYTHON", "VIRTUAL_ENV"))
    }
    offline = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    return {**inherited, **offline, "CUDA_VISIBLE_DEVICES": "", **variables}
