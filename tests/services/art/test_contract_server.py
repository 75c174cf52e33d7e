"""The real art-server, through the trainer's client, keeps to the contract that the memory backend keeps to."""

from collections.abc import AsyncIterator

import pytest

from rollbus.trainer.backends.art_client import ArtClient
from tests.contracts.backend import BackendContract
from tests.services.art.fixtures import ArtServer

pytestmark = pytest.mark.services


class TestArtServer(BackendContract):
    @pytest.fixture
    async def backend(self, art_server: ArtServer) -> AsyncIterator[ArtClient]:
        client = art_server.client()
        yield client
        await client.close()
