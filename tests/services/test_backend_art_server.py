"""The real art-server, through the trainer's client, keeps to the same contract as the memory backend."""

from collections.abc import AsyncIterator

import pytest

from rollbus.trainer.backends.art_client import ArtClient
from tests.contracts.backend import BackendContract
from tests.services.art_fixtures import ArtServer, art_base_model, art_launcher, art_server

__all__ = ["art_base_model", "art_launcher", "art_server"]
pytestmark = pytest.mark.services


class TestArtServer(BackendContract):
    """The contract on a server that other tests use too."""

    @pytest.fixture
    async def backend(self, art_server: ArtServer) -> AsyncIterator[ArtClient]:
        client = art_server.client()
        yield client
        await client.close()
