"""A SkyRL service in an environment of its own, `.venv-tinker`, made once from pinned requirements.

It starts its engine as `uv run … -m skyrl.tinker.engine` and reads its parent's command line, which must be such a `uv
run` too. A small program named `uv`, first on its PATH, runs both with the environment's Python.
"""

import fcntl
import hashlib
import json
import os
import subprocess
import sys
import urllib.request
from pathlib import Path

from rollbus.local.process.ports import find_free_port
from rollbus.local.process.service import Service, ServiceProcess
from rollbus.local.process.tether import tethered
from rollbus.stack_settings import HOST

ROOT = Path(__file__).parents[2]
REQUIREMENTS = Path(__file__).parent / "requirements.txt"
UV_STAND_IN = """#!/usr/bin/env bash
while [ $# -gt 0 ] && [ "$1" != -m ]; do shift; done
{python} "$@"
"""
OPTIONS = {"max_lora_adapters": 16, "max_lora_rank": 8, "sample_max_num_sequences": 8, "train_micro_batch_size": 8}
"""Fixed sizes of batches, since each further one is compiled for ten seconds."""
START_TIMEOUT_S = 240.0


def make_environment() -> Path:
    """Return the Python of the environment; make it if it is missing or its requirements have changed."""
    folder, digest = ROOT / ".venv-tinker", hashlib.sha256(REQUIREMENTS.read_bytes()).hexdigest()
    (ROOT / ".make").mkdir(exist_ok=True)
    with (ROOT / ".make" / "tinker.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        mark = folder / "requirements.sha256"
        if not mark.exists() or mark.read_text() != digest:
            uv, environment = Path(sys.prefix) / "bin" / "uv", {**os.environ, "VIRTUAL_ENV": ""}
            python = folder / "bin" / "python"
            for command in (
                [uv, "venv", "-q", "--clear", "--python", sys.executable, folder],
                [uv, "pip", "install", "-q", "--python", python, "-r", REQUIREMENTS],
            ):
                subprocess.run(list(map(str, command)), env=environment, cwd=ROOT, check=True)
            mark.write_text(digest)
    return folder / "bin" / "python"


def make_service(folder: Path, base_model: Path) -> tuple[ServiceProcess, str]:
    """Return the process of a service, not yet started, and its address."""
    python, port = make_environment(), find_free_port()
    stand_in = folder / "bin" / "uv"
    stand_in.parent.mkdir(parents=True)
    stand_in.write_text(UV_STAND_IN.format(python=python))
    stand_in.chmod(0o755)
    url = f"http://{HOST}:{port}"
    command = [
        *(str(stand_in), "run", "--", "-m", "skyrl.tinker.api", "--host", HOST, "--port", str(port)),
        *("--backend", "jax", "--base-model", str(base_model), "--backend-config", json.dumps(OPTIONS)),
        *("--database-url", f"sqlite:///{folder}/tinker.db", "--checkpoints-base", str(folder / "checkpoints")),
    ]
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "PYTHON", "TINKER"))},
        "PATH": f"{stand_in.parent}:{os.environ['PATH']}",
        "JAX_PLATFORMS": "cpu",
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "CUDA_VISIBLE_DEVICES": "",
    }
    service = Service(
        "skyrl",
        command=lambda: command,
        is_healthy=lambda: _answers(f"{url}/api/v1/healthz"),
        address=url,
        ports={"port": port},
        start_timeout_s=START_TIMEOUT_S,
        env=environment,
    )
    return ServiceProcess(service, log_path=folder / "skyrl.log", prefix=tethered()), url


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as response:
            return bool(response.status == 200)
    except OSError:
        return False
