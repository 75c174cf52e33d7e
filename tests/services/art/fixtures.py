"""Real art-servers for tests: one shared by the session, and others that crash and come back.

`conftest` takes the fixtures over, so that all modules share them. Nothing here imports ART: that happens in the
launcher's process.
"""

import hashlib
import json
import os
import random
import signal
import socket
import sys
import time
from array import array
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from rollbus.local.process.ports import find_free_port
from rollbus.local.process.service import Service
from rollbus.schemas.records.tokens import encode_token_ids
from rollbus.stack_settings import HOST
from rollbus.trainer.backends.art_client import ArtClient
from rollbus.trainer.backends.protocol import TrainRequest, TrainTrajectory, TurnTokens
from rollbus.trainer.train_config import TrainConfig
from tests.services.shared_service import shared_service
from tests.waiting import wait_until

MODEL = "agent"
START_TIMEOUT_S = 240.0
TOKENS = 384
CRASH_POINTS = ("started", "updated", "checkpoint", "torn checkpoint", "published", "recorded")
"""Where `process` can let a server die during an update."""
TURNED = "turned"
"""In the place of such a point: a server whose updates have the sign of every advantage turned."""


@dataclass(slots=True)
class ArtServer:
    """An art-server on ports and data of its own; `start` again after it has died."""

    launcher: "Launcher"
    base_model: Path
    directory: Path
    control_port: int = field(default_factory=find_free_port)
    model_port: int = field(default_factory=find_free_port)
    options: Mapping[str, Any] = field(default_factory=dict)
    """More of the section `art_server`."""
    shared: Mapping[str, Any] = field(default_factory=dict)
    """Other parts of the settings file, such as `runs`."""
    data_dir: Path | None = None
    """Where its stack's secrets are; None is the launcher's own."""
    process_id: int = 0

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.control_port}"

    @property
    def model_url(self) -> str:
        return f"http://{HOST}:{self.model_port}/v1"

    @property
    def checkpoints(self) -> Path:
        return self.directory / "rollbus" / "models" / MODEL / "checkpoints"

    def start(self, *, die_at: str = "") -> None:
        """`die_at` may also be `TURNED`: then the server lives, and trains what did worse."""
        own = {"model": MODEL, "base_model": str(self.base_model), "directory": str(self.directory), **self.options}
        stack: dict[str, Any] = {"art_port": self.control_port, "model_port": self.model_port}
        if self.data_dir is not None:
            stack["data_dir"] = str(self.data_dir)
        self.process_id = self.launcher.launch(
            {**self.shared, "art_server": own, "stack": stack, "insecure": "token" not in own}, die_at
        )
        deadline = time.monotonic() + START_TIMEOUT_S
        while not self._answers():
            self.require_running()
            assert time.monotonic() < deadline, f"the art-server does not answer; see {self.launcher.log}"
            time.sleep(0.05)
        self.require_running()

    def require_running(self) -> None:
        """Fail with the end of its log if it has died."""
        assert self.is_running(), f"the art-server died:\n{self.launcher.log.read_text()[-4000:]}"

    def is_running(self) -> bool:
        return _is_running(self.process_id)

    def wait_until_dead(self) -> None:
        wait_until(lambda: not self.is_running(), "the art-server was to end and did not")

    def stop(self, number: signal.Signals = signal.SIGTERM) -> None:
        if self.process_id and self.is_running():
            os.kill(self.process_id, number)
            self.wait_until_dead()

    def client(self) -> ArtClient:
        return ArtClient(self.url)

    def digest(self, version: int) -> str:
        """Of weights and optimizer state."""
        files = sorted((self.checkpoints / f"{version:04d}").glob("*.safetensors"))
        assert len(files) == 2, files
        return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()

    def _answers(self) -> bool:
        try:
            return httpx.get(f"{self.url}/health").status_code == 200
        except httpx.HTTPError:
            return False


class Launcher:
    """The process that art-servers are forked from; what it starts for this one writes into `log`."""

    def __init__(self, port: int, log: Path) -> None:
        self._port, self.log = port, log

    def launch(self, settings: Mapping[str, Any], die_at: str) -> int:
        return self._order({"settings": settings, "die_at": die_at})

    def call(self, function: str, *arguments: str) -> None:
        """Run `module:function` where ART is imported, and wait for its end; it leaves its findings in files."""
        process_id = self.begin_call(function, *arguments)
        while _is_running(process_id):
            time.sleep(0.02)

    def begin_call(self, function: str, *arguments: str) -> int:
        """Let `module:function` run where ART is imported; return the number of its process."""
        return self._order({"call": function, "arguments": arguments})

    def make_model(self, folder: Path, words: str, *, max_tokens: int, seed: int) -> Path:
        """Make a base model of the demo's shape, a little smaller, with random weights."""
        self.call("tests.services.art.base_model:make", str(folder), words, str(max_tokens), str(seed))
        assert (folder / "config.json").exists(), self.log.read_text()[-4000:]
        return folder

    def _order(self, order: Mapping[str, Any]) -> int:
        """Return the number of the process that does it."""
        with socket.create_connection((HOST, self._port)) as connection, connection.makefile("rw") as file:
            file.write(json.dumps({**order, "log": str(self.log)}) + "\n")
            file.flush()
            return int(file.readline())


def launcher_service(_folder: Path) -> tuple[Service, str]:
    """The launcher's process and its port."""
    port = find_free_port()
    command = [sys.executable, "-m", "tests.services.art.process", str(port)]
    service = Service(
        "art", lambda: command, lambda: _accepts(port), ports={"art": port}, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    return service, str(port)


def _accepts(port: int) -> bool:
    with suppress(OSError), socket.create_connection((HOST, port), 5):
        return True
    return False


def _is_running(process_id: int) -> bool:
    try:
        os.kill(process_id, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.fixture(scope="session")
def art_launcher(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launcher]:
    """What imports ART, once for all worker processes of a run."""
    (log := tmp_path_factory.mktemp("art") / "art.log").touch()
    with shared_service(tmp_path_factory, "art", launcher_service) as port:
        yield Launcher(int(port), log)


@pytest.fixture(scope="session")
def art_base_model(art_launcher: Launcher, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("base") / "model"
    return art_launcher.make_model(folder, "system user assistant choose a letter", max_tokens=128, seed=5)


@pytest.fixture(scope="session")
def art_server(
    art_launcher: Launcher, art_base_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ArtServer]:
    """One server that all tests share; its versions only grow."""
    server = ArtServer(art_launcher, art_base_model, tmp_path_factory.mktemp("art-server"))
    server.start()
    yield server
    server.stop()


@pytest.fixture
def own_art_server(art_launcher: Launcher, art_base_model: Path, tmp_path: Path) -> Iterator[ArtServer]:
    """A server of the test's own, not started."""
    server = ArtServer(art_launcher, art_base_model, tmp_path / "data")
    yield server
    server.stop(signal.SIGKILL)


def made_up_batch(name: str, base_version: int, *, groups: int = 4, size: int = 4, **config: Any) -> TrainRequest:
    """A batch of random tokens, the same for the same name, sampled by nobody."""
    chance = random.Random(name)
    trajectories = []
    for group in range(groups):
        for member in range(size):
            prompt = [chance.randrange(TOKENS) for _ in range(12)]
            completion = [chance.randrange(TOKENS) for _ in range(chance.randrange(2, 9))]
            turn = TurnTokens(
                encode_token_ids(prompt),
                encode_token_ids(completion),
                array("f", [-5.9] * len(completion)).tobytes(),
                policy_version=base_version,
            )
            reward = float(member == 0)
            trajectories.append(
                TrainTrajectory(f"{name}-{group}-{member}", f"{name}-{group}", reward - 1 / size, reward, (turn,))
            )
    settings = TrainConfig(**{"learning_rate": 1e-3, **config})
    return TrainRequest(name, "main", MODEL, base_version, tuple(trajectories), settings)
