"""`rollbus art-server run` on ports and a folder of its own, as a process that can be killed and started again."""

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from benchmarks.gpu.engines import Engine
from rollbus.local.process.ports import find_free_port
from rollbus.local.process.service import Service, ServiceProcess, answers_http
from rollbus.local.process.tether import tethered
from rollbus.stack_settings import HOST
from rollbus.trainer.backends.art_client import ArtClient

MODEL = "agent"


@dataclass(frozen=True, slots=True)
class Server:
    """One server; `process` starts and stops it."""

    process: ServiceProcess
    control_port: int
    model_port: int

    @property
    def model_url(self) -> str:
        return f"http://{HOST}:{self.model_port}/v1"

    def client(self) -> ArtClient:
        return ArtClient(f"http://{HOST}:{self.control_port}")

    def start(self) -> None:
        """Start it, and wait; in the main thread, with which it ends."""
        self.process.start()
        self.process.wait_until_healthy()

    def kill(self) -> None:
        """End it as `kill -9` does."""
        self.process.stop(grace_s=0.0)


@contextmanager
def serve(engine: Engine, base_model: Path, folder: Path, max_tokens: int) -> Iterator[Server]:
    """Give a server that is not started yet; it is stopped at the end. Its files stay in `folder`."""
    folder.mkdir(parents=True)
    control_port, model_port = find_free_port(), find_free_port()
    where = {"model": MODEL, "base_model": str(base_model), "directory": str(folder / "art"), "max_tokens": max_tokens}
    document: Mapping[str, Any] = {
        "insecure": True,  # a server of minutes, on loopback
        "art_server": {**where, **engine.options},
        "stack": {"art_port": control_port, "model_port": model_port, "data_dir": str(folder)},
    }
    settings_file = folder / "settings.yaml"
    settings_file.write_text(yaml.safe_dump(document), encoding="utf-8")
    rollbus = Path(sys.executable).with_name("rollbus")
    service = Service(
        "art-server",
        lambda: [str(rollbus), "--config", str(settings_file), "art-server", "run"],
        is_healthy=lambda: answers_http(control_port, "/health"),
        start_timeout_s=engine.start_timeout_s,
    )
    process = ServiceProcess(service, log_path=folder / "art-server.log", prefix=tethered())
    try:
        yield Server(process, control_port, model_port)
    finally:
        process.stop()
