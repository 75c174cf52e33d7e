"""The contract on `ArtLocal`, run by `test_backend_art_local` where ART is imported."""

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from rollbus.trainer.backends.art_local import ArtLocal, ArtLocalSettings
from rollbus.trainer.backends.model_settings import ModelOptions
from tests.contracts.backend import BackendContract

BASE_MODEL = "ROLLBUS_TEST_BASE_MODEL"


class TestArtLocal(BackendContract):
    @pytest.fixture
    async def backend(self, tmp_path: Path) -> AsyncIterator[ArtLocal]:
        settings = ArtLocalSettings(
            "agent", Path(os.environ[BASE_MODEL]), tmp_path, options=ModelOptions(max_rows=4, keep_versions=2)
        )
        one = ArtLocal(settings)
        await one.start()
        yield one
        await one.close()


def run(base_model: str, report: str) -> None:
    os.environ[BASE_MODEL] = base_model
    pytest.main([__file__, "-q", "-p", "no:cacheprovider", "-m", "", f"--junitxml={report}"])
