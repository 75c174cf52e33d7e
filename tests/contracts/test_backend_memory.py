"""The shipped memory backend keeps to the backend contract, with and without a journal on disk."""

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from rollbus.schemas.errors import RejectedError, UnavailableError
from rollbus.trainer.backends.memory import MemoryBackend
from tests.contracts.backend import BackendContract, make_request, submit_and_wait


class TestMemoryBackend(BackendContract):
    """The contract, and what only this backend can show."""

    @pytest.fixture(params=["forgets", "keeps a journal"])
    async def backend(self, request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[MemoryBackend]:
        backend = MemoryBackend(folder=tmp_path if request.param == "keeps a journal" else None)
        yield backend
        await backend.close()

    async def test_only_equal_batches_on_one_base_give_equal_weights(self) -> None:
        backend_a, backend_b, backend_c = MemoryBackend(), MemoryBackend(), MemoryBackend()
        for backend, rewards in ((backend_a, (0.0, 1.0)), (backend_b, (0.0, 1.0)), (backend_c, (0.0, 2.0))):
            await submit_and_wait(backend, make_request(0, batch_hash="b", rewards=rewards))
        assert backend_a.weights(1) == backend_b.weights(1) != backend_c.weights(1)

    async def test_a_pending_batch_can_be_canceled_and_submitted_again(self) -> None:
        backend = MemoryBackend(step_s=0.02)
        first, second = make_request(0), make_request(0)
        await backend.submit(first)
        await backend.submit(second)
        assert (await backend.cancel(second.batch_hash)).state == "canceled"
        with pytest.raises(RejectedError, match="canceled"):
            await backend.wait(second.batch_hash)
        await backend.wait(first.batch_hash)
        assert (await backend.versions()).head == 1
        await backend.close()

    async def test_a_failed_batch_has_an_error_and_can_be_tried_again(self) -> None:
        failures = [OSError("disk full")]

        def fault(point: str, request: object) -> None:
            if failures:
                raise failures.pop()

        backend, request = MemoryBackend(fault=fault), make_request(0)
        await backend.submit(request)
        with pytest.raises(UnavailableError, match="disk full"):
            await backend.wait(request.batch_hash)
        status = await backend.status(request.batch_hash)
        assert (status.state, status.retriable) == ("failed", True)
        assert await submit_and_wait(backend, request) == 1


async def test_a_version_that_cannot_be_served_stays_in_the_journal() -> None:
    class Unserving(MemoryBackend):
        async def promote(self, version: int, *, rollback: bool = False) -> None:
            raise UnavailableError("no memory for another version")

    backend = Unserving()
    request = replace(make_request(0), serve=True)
    await backend.submit(request)
    with pytest.raises(UnavailableError, match="no memory"):
        await backend.wait(request.batch_hash)
    assert (await backend.status(request.batch_hash)).state == "failed"
    result_in_journal = await backend.journal(request.batch_hash)
    assert result_in_journal is not None
    assert result_in_journal.version == 1
    await backend.submit(request)
    assert await backend.wait(request.batch_hash) == result_in_journal
