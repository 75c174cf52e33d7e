"""A namespace on the real services, with the processes that users start, and the commands that they look with."""

import asyncio
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from rollbus.health.picture import to_json
from rollbus.health.reading import read_health
from rollbus.local.process.ports import find_free_port
from rollbus.runtime.kafka.clients import new_producer, running
from rollbus.runtime.kafka.connection import KafkaConnection
from rollbus.schemas.codec import encode
from tests.console import ROLLBUS
from tests.installs import own_environment, run

WAIT_S = 240.0
STACK_PORTS = ("kafka_port", "clickhouse_port", "art_port", "model_port")
"""Of a local stack that nobody starts: `status` would complain of another's on the usual ports."""
BEAT_S = 2.0


@dataclass(slots=True)
class World:
    """One folder with settings, and what was started in it."""

    folder: Path
    kafka: str
    namespace: str
    database: str
    """Of ClickHouse."""
    process_by_name: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def rollbus(self, *words: str, check: bool = True, **environment: str) -> subprocess.CompletedProcess[str]:
        return run(ROLLBUS, "-c", "settings.yaml", *words, cwd=self.folder, check=check, **environment)

    def start(
        self, name: str, *words: str, prefix: Sequence[str] = (), stdout: int | None = None, **environment: str
    ) -> subprocess.Popen[bytes]:
        with (self.folder / f"{name}.log").open("ab") as log:
            command = [*prefix, ROLLBUS, "-c", "settings.yaml", *words]
            env = own_environment() | environment
            out = log if stdout is None else stdout
            process = subprocess.Popen(command, cwd=self.folder, env=env, stdout=out, stderr=log)
        self.process_by_name[name] = process
        return process

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text()

    def health(self) -> dict[str, Any]:
        """Return what `rollbus status --json` prints."""
        answer = self.rollbus("status", "--json", check=False)
        assert answer.stdout.startswith("{"), answer.stderr
        picture: dict[str, Any] = json.loads(answer.stdout)
        is_wrong = picture["verdict"]["is_wrong"]
        assert answer.returncode == int(is_wrong), answer.stdout
        assert is_wrong >= (picture["error"] is not None or bool((picture["health"] or {}).get("problems")))
        return picture

    def until(self, is_so: Callable[[dict[str, Any]], object], what: str, *, from_log: bool = True) -> dict[str, Any]:
        """Look until the picture is so, in the log first, which is cheaper; return what `status --json` then prints."""
        deadline, connection = time.monotonic() + WAIT_S, KafkaConnection(bootstrap_servers=self.kafka)
        while True:
            if from_log:
                picture = {"health": to_json(asyncio.run(read_health(connection, self.namespace)))}
            if (not from_log or is_so(picture)) and is_so(picture := self.health()):
                return picture
            logs = "\n".join(f"{name}: {self.log(name)[-1500:]}" for name in self.process_by_name)
            assert time.monotonic() < deadline, f"{what}: {json.dumps(picture)[:3000]}\n{logs}"
            time.sleep(0.3)

    def kill(self, name: str) -> None:
        """End a process as nobody asks it to."""
        self.process_by_name[name].kill()
        self.process_by_name[name].wait(120)

    def end(self, name: str) -> None:
        """Ask a process to end, and see that it does so cleanly."""
        self.process_by_name[name].send_signal(signal.SIGTERM)
        assert self.process_by_name[name].wait(120) == 0, self.log(name)

    def end_all(self) -> None:
        for process in self.process_by_name.values():
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.send_signal(signal.SIGTERM)
        for process in self.process_by_name.values():
            try:
                process.wait(120)
            except subprocess.TimeoutExpired:
                os.kill(process.pid, signal.SIGKILL)
                process.wait()


@contextmanager
def make_world(
    folder: Path, kafka: str, clickhouse: tuple[str, int], namespace: str, **sections: Any
) -> Iterator[World]:
    """Write settings for the session's services; end at last what was started."""
    (host, port), database = clickhouse, f"health_{namespace[2:8]}"
    settings: dict[str, Any] = {
        "namespace": namespace,
        "insecure": True,
        "kafka": {"bootstrap_servers": kafka},
        "clickhouse": {"host": host, "port": port, "database": database},
        "worker": {"event_partitions": 1},
        "health": {"interval_s": BEAT_S},
        "trainer": {"backend": {"type": "memory"}},
        "stack": {name: find_free_port() for name in STACK_PORTS},
    }
    settings |= sections
    (folder / "settings.yaml").write_text(yaml.safe_dump(settings))
    world = World(folder, kafka, namespace, database)
    try:
        yield world
    finally:
        world.end_all()


def send_records(kafka: str, topic: str, records: Iterable[Any]) -> None:
    """Write records, or bytes as they are, into partition 0 of a topic."""

    async def send() -> None:
        connection = KafkaConnection(bootstrap_servers=kafka)
        async with running(connection, new_producer(connection)) as producer:
            for record in records:
                value = record if isinstance(record, bytes) else encode(record)
                await producer.send_and_wait(topic, value, b"key", partition=0)

    asyncio.run(send())


def problems(picture: dict[str, Any]) -> dict[str, str]:
    """Return by alarm what is wrong."""
    return {problem["alarm"]: problem["what"] + " → " + problem["remedy"] for problem in picture["health"]["problems"]}


def states(picture: dict[str, Any]) -> dict[str, str]:
    """Return the newest state by kind of process."""
    return {process["kind"]: process["state"] for process in (picture["health"] or {"processes": []})["processes"]}
