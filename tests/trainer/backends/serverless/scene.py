"""A fake of W&B's service on loopback, and backends that reach it by ART's own client."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rollbus.trainer.art_server.control import environment as art_environment

art_environment.protect()

from rollbus.trainer.backends.model_settings import Retention  # noqa: E402
from rollbus.trainer.backends.protocol import TrainRequest  # noqa: E402
from rollbus.trainer.backends.serverless.backend import ServerlessBackend  # noqa: E402
from rollbus.trainer.backends.serverless.client import ServerlessClient  # noqa: E402
from rollbus.trainer.backends.serverless.follower import WaitLimits  # noqa: E402
from rollbus.trainer.backends.serverless.memory import MemoryModel, MemoryServerless  # noqa: E402
from rollbus.trainer.backends.serverless.settings import ServerlessAccess  # noqa: E402
from rollbus.trainer.train_config import TrainConfig  # noqa: E402
from tests.contracts.backend import MODEL, make_request  # noqa: E402
from tests.waiting import until  # noqa: E402

QUICK = WaitLimits(settle_s=0.3, silence_s=5.0, job_poll_s=0.01, checkpoint_poll_s=0.01)
MakeClient = Callable[[ServerlessAccess, str], ServerlessClient]


def make_art_request(base: int, **changes: Any) -> TrainRequest:
    """Return a batch whose advantages ART computes."""
    return replace(make_request(base, **changes), config=TrainConfig(learning_rate=1e-4, advantages="art"))


@dataclass
class ServerlessScene:
    """What outlives a trainer: its folder, and the service."""

    folder: Path
    service: MemoryServerless = field(default_factory=MemoryServerless)
    url: str = ""

    @asynccontextmanager
    async def serve(self) -> AsyncIterator["ServerlessScene"]:
        """Let the service listen."""
        async with self.service.serve() as self.url:
            yield self

    @property
    def model(self) -> MemoryModel:
        """Return the only model of the service."""
        (model,) = self.service.models.values()
        return model

    @property
    def trained_jobs(self) -> list[str]:
        """Return the jobs that moved the weights."""
        self.service.finish_jobs()
        return self.model.trained_jobs

    async def wait_for_jobs(self, number: int) -> None:
        """Return when so many batches have been sent."""
        await until(lambda: len(self.service.jobs) >= number, "no job is sent")

    def access(self, **changes: str) -> ServerlessAccess:
        """Return where the model is."""
        place = {"project": "tickets", "name": "agent-1", "base_model": "OpenPipe/Qwen3-14B-Instruct"}
        return ServerlessAccess.model_validate({"url": self.url, **place, **changes})

    def make_client(self, access: ServerlessAccess) -> ServerlessClient:
        """Return a client of a service."""
        return ServerlessClient(access, self.service.api_key)

    def make_backend(
        self,
        *,
        access: ServerlessAccess | None = None,
        api_key: str = "key",
        retention: Retention | None = None,
        accept_step: int | None = None,
        limits: WaitLimits = QUICK,
        make_client: MakeClient = ServerlessClient,
        kind: type[ServerlessBackend] = ServerlessBackend,
    ) -> ServerlessBackend:
        """Return a backend that has not been started."""
        return kind(
            MODEL,
            make_client(access or self.access(), api_key),
            self.folder / "journal",
            max_tokens=4096,
            retention=retention,
            accept_step=accept_step,
            limits=limits,
        )

    async def start(self, **changes: Any) -> ServerlessBackend:
        """Return a started backend."""
        backend = self.make_backend(**changes)
        await backend.start()
        return backend
