"""The serverless backend keeps to the backend contract, through ART's own client, over HTTP to the shipped fake."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from rollbus.trainer.backends.serverless.backend import ServerlessBackend
from rollbus.trainer.train_config import TrainConfig
from tests.contracts.backend import BackendContract
from tests.trainer.backends.serverless.scene import ServerlessScene


class TestServerlessBackend(BackendContract):
    config = TrainConfig(learning_rate=1e-4, advantages="art")

    @pytest.fixture
    async def backend(self, tmp_path: Path) -> AsyncIterator[ServerlessBackend]:
        async with ServerlessScene(tmp_path).serve() as scene:
            backend = await scene.start()
            yield backend
            await backend.close()
