"""The contract on `ArtLocal`, run by `test_backend_art_local` where ART is imported."""

import os
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from rollbus.schemas.errors import RejectedError, UnavailableError
from rollbus.trainer.backends.art_local import ArtLocal, ArtLocalSettings
from rollbus.trainer.backends.model_settings import ModelOptions
from rollbus.trainer.backends.protocol import TrainResult
from tests.contracts.backend import BackendContract, make_request, submit_and_wait

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

    async def test_a_batch_that_waits_behind_another_can_be_canceled_and_submitted_again(
        self, backend: ArtLocal
    ) -> None:
        first, second = make_request(0), make_request(0)
        async with backend.updates_held():
            await backend.submit(first)
            await backend.submit(second)
            assert (await backend.cancel(second.batch_hash)).state == "canceled"
        assert (await backend.wait(first.batch_hash, 0.05)).version == 1
        with pytest.raises(RejectedError, match="canceled"):
            await backend.wait(second.batch_hash, 0.05)
        assert await backend.current_version() == 1
        again = replace(second, base_version=1)
        assert await submit_and_wait(backend, again) == 2

    async def test_a_result_that_could_not_be_written_down_is_taken_from_its_checkpoint(
        self, backend: ArtLocal, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def full(_: TrainResult) -> None:
            raise UnavailableError("no space left")

        request = make_request(0)
        with monkeypatch.context() as patched:
            patched.setattr(backend.session.journal, "done", full)
            with pytest.raises(UnavailableError, match="no space left"):
                await submit_and_wait(backend, request)
        assert (await backend.versions()).head == 0
        assert await submit_and_wait(backend, request) == 1
        assert [each.version for each in (await backend.versions()).known] == [0, 1]


def run(base_model: str, report: str) -> None:
    os.environ[BASE_MODEL] = base_model
    imported_before = (
        "ignore::pytest.PytestAssertRewriteWarning"  # the process that this one is a copy of has all of ART
    )
    pytest.main([__file__, "-q", "-p", "no:cacheprovider", "-m", "", "-W", imported_before, f"--junitxml={report}"])
