"""The Tinker backend over the shipped fake of a service keeps to the backend contract."""

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from rollbus.schemas.errors import ConfigurationError, RejectedError, UnavailableError
from rollbus.trainer.backends.model_settings import Retention
from rollbus.trainer.backends.protocol import TrainRequest
from rollbus.trainer.backends.tinker.backend import TinkerBackend, TrainedModel
from rollbus.trainer.backends.tinker.memory import MemoryTinker
from rollbus.trainer.train_config import Distillation, TrainConfig
from tests.contracts.backend import MODEL, BackendContract, make_request, submit_and_wait

TRAINED_MODEL = TrainedModel(MODEL, "tiny", lora_rank=8, vocabulary=384)


async def open_backend(
    service: MemoryTinker, folder: Path, *, trained: TrainedModel = TRAINED_MODEL, retention: Retention | None = None
) -> TinkerBackend:
    """Return a started backend."""
    backend = TinkerBackend(trained, service, folder, retention)
    await backend.start()
    return backend


class TestTinkerBackend(BackendContract):
    @pytest.fixture
    async def backend(self, tmp_path: Path) -> AsyncIterator[TinkerBackend]:
        backend = await open_backend(MemoryTinker(), tmp_path)
        yield backend
        await backend.close()


async def test_a_backend_that_starts_again_goes_on_with_its_versions(tmp_path: Path) -> None:
    service = MemoryTinker()
    backend = await open_backend(service, tmp_path)
    request = make_request(0)
    await submit_and_wait(backend, request)
    result = await backend.journal(request.batch_hash)
    await backend.close()
    again = await open_backend(service, tmp_path)
    assert await again.journal(request.batch_hash) == result
    assert (await again.versions()).head == 1
    assert await submit_and_wait(again, make_request(1)) == 2
    await again.close()


async def test_a_folder_of_another_base_model_or_rank_is_refused(tmp_path: Path) -> None:
    service = MemoryTinker()
    await (await open_backend(service, tmp_path)).close()
    for other in (
        TrainedModel(MODEL, "another", lora_rank=8, vocabulary=384),
        TrainedModel(MODEL, "tiny", lora_rank=4, vocabulary=384),
    ):
        backend = TinkerBackend(other, service, tmp_path)
        with pytest.raises(ConfigurationError, match="another directory"):
            await backend.start()
        await backend.close()


async def test_versions_beyond_retention_are_deleted_at_the_service(tmp_path: Path) -> None:
    service = MemoryTinker()
    backend = await open_backend(service, tmp_path, retention=Retention(keep_newest=2, keep_every=3))
    for base in range(6):
        await submit_and_wait(backend, make_request(base))
    await backend.promote(6)
    await submit_and_wait(backend, make_request(6))
    stored = [version.version for version in (await backend.versions()).known]
    assert stored == [0, 3, 5, 6, 7]
    assert len(service.saved) == len(stored)
    with pytest.raises(RejectedError, match="retention"):
        await backend.promote(4)
    await backend.close()


async def test_a_setting_that_no_service_has_is_refused_by_name(tmp_path: Path) -> None:
    backend = await open_backend(MemoryTinker(), tmp_path)
    request = make_request(0)
    settings = TrainConfig(loss="dppo", entropy_bonus=0.1)
    refused = replace(request, config=settings)
    await backend.submit(refused)
    with pytest.raises(UnavailableError, match=r"loss: dppo, entropy_bonus: 0\.1"):
        await backend.wait(refused.batch_hash)
    assert (await backend.versions()).head == 0
    await backend.close()


async def test_log_probs_that_are_not_the_models_own_are_refused_before_a_step(tmp_path: Path) -> None:
    service = MemoryTinker()
    backend = await open_backend(service, tmp_path)
    request = make_request(0)
    strange = replace(request, most_difference=0.1)
    await backend.submit(strange)
    with pytest.raises(RejectedError, match=r"differ from the model's own by 4\.45"):
        await backend.wait(strange.batch_hash)
    assert (service.steps, (await backend.versions()).head) == (0, 0)
    assert await submit_and_wait(backend, make_request(0)) == 1
    assert service.steps == 1
    await backend.close()


def with_hints(request: TrainRequest) -> TrainRequest:
    """Return the request with a hint for every turn, to be learned from."""
    trajectories = tuple(
        replace(trajectory, turns=tuple(replace(turn, hint="no") for turn in trajectory.turns))
        for trajectory in request.trajectories
    )
    return replace(request, trajectories=trajectories, config=TrainConfig(distill=Distillation()))


async def test_the_base_version_of_a_step_scores_hints_at_the_service(tmp_path: Path) -> None:
    backend = TinkerBackend(
        TRAINED_MODEL, MemoryTinker(), tmp_path, place_hint=lambda prompt, hint: [*prompt, len(hint)]
    )
    await backend.start()
    assert (await backend.capabilities()).distills
    request = with_hints(make_request(0))
    assert await submit_and_wait(backend, request) == 1
    metrics = (await backend.wait(request.batch_hash)).metrics
    assert metrics["distilled_tokens"] == metrics["tokens_trained"]
    assert metrics["distilled_gain_mean"] == pytest.approx(-4.45, abs=0.01)  # all of 384 tokens are alike
    await backend.close()


async def test_without_the_chat_template_hints_are_refused_by_name(tmp_path: Path) -> None:
    backend = await open_backend(MemoryTinker(), tmp_path)
    assert not (await backend.capabilities()).distills
    request = with_hints(make_request(0))
    await backend.submit(request)
    with pytest.raises(UnavailableError, match="`distill` needs the chat template"):
        await backend.wait(request.batch_hash)
    await backend.close()
