"""A network worth it gets all cores: half for the learner while it computes, and the rest for the sampler."""

from pathlib import Path

import pytest
import torch
from torch import nn

from rollbus.trainer.art_server.learner import torch_service
from rollbus.trainer.art_server.learner.torch_service import TorchService
from rollbus.trainer.art_server.model import threads
from rollbus.trainer.art_server.model.threads import ThreadShares, choose_threads, count_cores
from rollbus.trainer.backends.model_settings import ServiceSettings
from tests.sequences import three_answers
from tests.trainer.art_server.test_service import plan

SMOLLM2 = 576


@pytest.mark.parametrize(
    ("cores", "expected"),
    [(1, ThreadShares(1, 1, 1)), (2, ThreadShares(2, 1, 1)), (5, ThreadShares(5, 3, 2)), (16, ThreadShares(16, 8, 8))],
)
def test_cores_are_shared_while_an_update_is_computed(cores: int, expected: ThreadShares) -> None:
    assert choose_threads("cpu", SMOLLM2, cores) == expected


def test_a_narrow_network_and_a_gpu_get_one_thread() -> None:
    assert choose_threads("cpu", 128, cores=16) == ThreadShares(1, 1, 1)
    assert choose_threads("cuda", SMOLLM2, cores=16) == ThreadShares(1, 1, 1)


def test_cores_are_those_that_the_container_and_the_environment_leave(tmp_path: Path) -> None:
    quota = tmp_path / "cpu.max"
    all_cores = count_cores({}, quota)
    quota.write_text("max 100000\n")
    assert count_cores({}, quota) == all_cores >= 1
    quota.write_text("100000 100000\n")
    assert count_cores({}, quota) == 1
    quota.write_text("20000 100000\n")
    assert count_cores({}, quota) == 1
    quota.unlink()
    assert count_cores({"OMP_NUM_THREADS": "1"}, quota) == 1
    assert count_cores({"OMP_NUM_THREADS": "4,2"}, quota) == all_cores


async def test_the_sampler_has_fewer_threads_while_an_update_is_computed(
    base_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threads, "LEAST_WIDTH", 1)
    monkeypatch.setattr(torch_service, "count_cores", lambda: 5)
    service = TorchService(ServiceSettings("agent", base_model, tmp_path))
    assert service.sampler.threads == 5
    load, counts = service.loader.load, list[tuple[int, int]]()

    def count(directory: Path) -> nn.Module:
        counts.append((service.sampler.threads, torch.get_num_threads()))
        return load(directory)

    monkeypatch.setattr(service.loader, "load", count)
    await service.update(three_answers(), plan())
    assert counts == [(3, 2)]
    assert service.sampler.threads == 5
    service.close()
