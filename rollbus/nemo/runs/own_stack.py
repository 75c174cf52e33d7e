"""Kafka and ClickHouse of a run alone, in its folder: their addresses, the same at each start."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from rollbus.local.process.ports import find_free_port, is_free
from rollbus.nemo.runs.folder import STACK_FOLDER, read_settings_of
from rollbus.nemo.runs.plan import Plan
from rollbus.stack_settings import HOST

LOOPBACK = ("localhost", "127.0.0.1", "0.0.0.0", "::1")
LEAVING_S = 30.0
"""How long the processes of a killed run may take to end; they are signalled at its death."""
ART_PORTS = ("art_port", "model_port")


def services_here(plan: Plan, folder: Path) -> dict[str, Any]:
    """Return the sections of the services in the run's folder; on the ports that an earlier start took."""
    backend = plan.art_backend
    stack = _earlier_stack(folder) or {
        "data_dir": str((folder / STACK_FOLDER).resolve()),
        "kafka_port": find_free_port(),
        "clickhouse_port": find_free_port(),
        "art_port": backend.port if backend is not None else find_free_port(),
        "model_port": model_port(plan),
    }
    return {
        "kafka": {"bootstrap_servers": f"{HOST}:{stack['kafka_port']}"},
        "clickhouse": {"host": HOST, "port": stack["clickhouse_port"]},
        "stack": stack,
    }


def model_port(plan: Plan) -> int:
    """Return the port of the trained model's endpoint, as an entry under `llms` has it, or a free one."""
    backend = plan.art_backend
    names = {backend.base_model, backend.name} if backend is not None else set[str]()
    for llm in plan.config.llms.values():
        address = urlsplit(str(getattr(llm, "base_url", "") or ""))
        if getattr(llm, "model_name", None) in names and address.hostname in LOOPBACK and address.port:
            return address.port
    return find_free_port()


def wait_until_free(ports: Sequence[int], timeout_s: float = LEAVING_S) -> None:
    """Wait for the ports of an earlier start; one that stays taken is reported by the service that needs it."""
    deadline = time.monotonic() + timeout_s
    while not all(map(is_free, ports)) and time.monotonic() < deadline:
        time.sleep(0.1)


def _earlier_stack(folder: Path) -> dict[str, Any] | None:
    stack: dict[str, Any] | None = read_settings_of(folder).get("stack")
    if stack is not None:
        had_art = (Path(stack["data_dir"]) / "art").exists()
        names = [name for name in stack if name.endswith("_port") and (had_art or name not in ART_PORTS)]
        wait_until_free([int(stack[name]) for name in names])
    return stack
