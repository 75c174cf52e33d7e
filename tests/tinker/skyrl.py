"""A SkyRL service in an environment of its own, `.venv-tinker`, made once from pinned requirements.

It starts its engine as `uv run … -m skyrl.tinker.engine` and reads its parent's command line, which must be such a `uv
run` too. A small program named `uv`, first on its PATH, runs both with the environment's Python.
"""

import json
import os
from pathlib import Path

from rollbus.local.process.ports import find_free_port
from rollbus.local.process.service import Service, ServiceProcess, answers_http
from rollbus.local.process.tether import tethered
from rollbus.stack_settings import HOST
from tests.environments import make_environment, outside_environment

REQUIREMENTS = Path(__file__).parent / "requirements.txt"
UV_STAND_IN = """#!/usr/bin/env bash
while [ $# -gt 0 ] && [ "$1" != -m ]; do shift; done
{python} "$@"
"""
OPTIONS = {"max_lora_adapters": 16, "max_lora_rank": 8, "sample_max_num_sequences": 8, "train_micro_batch_size": 8}
"""Fixed sizes of batches, since each further one is compiled for ten seconds."""
START_TIMEOUT_S = 240.0


def make_service(folder: Path, base_model: Path) -> tuple[ServiceProcess, str]:
    """Return the process of a service, not yet started, and its address."""
    python, port = make_environment("tinker", REQUIREMENTS), find_free_port()
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
        **{name: value for name, value in outside_environment().items() if not name.startswith("TINKER")},
        "PATH": f"{stand_in.parent}:{os.environ['PATH']}",
        "JAX_PLATFORMS": "cpu",
    }
    service = Service(
        "skyrl",
        command=lambda: command,
        is_healthy=lambda: answers_http(port, "/api/v1/healthz"),
        address=url,
        ports={"port": port},
        start_timeout_s=START_TIMEOUT_S,
        env=environment,
    )
    return ServiceProcess(service, log_path=folder / "skyrl.log", prefix=tethered()), url
