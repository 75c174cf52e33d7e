"""The service around sampler and learner: what is announced is loaded, and what is wrong says what to do."""

import asyncio
import importlib.util
import json
import resource
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from rollbus.schemas.errors import ConfigurationError, RejectedError, UnavailableError
from rollbus.schemas.records.delivery import PolicyDecision
from rollbus.trainer.art_server.checkpoints.checkpoint import read_weights
from rollbus.trainer.art_server.checkpoints.journal import Failure, Journal
from rollbus.trainer.art_server.control.environment import UNUSED, leave_out_unused
from rollbus.trainer.art_server.control.server import check_base_model
from rollbus.trainer.art_server.endpoint.tokenizer import load_tokenizer
from rollbus.trainer.art_server.learner.torch_service import StepPlan, TorchService
from rollbus.trainer.art_server.model.memory_limits import memory_failures
from rollbus.trainer.art_server.sampler.requests import SamplingParameters
from rollbus.trainer.backends.model_settings import LoraConfig, ModelOptions, ServiceSettings
from rollbus.trainer.train_config import TrainConfig
from tests.models import create_model
from tests.sequences import three_answers
from tests.trainer.art_server.conftest import SMALL

OPTIONS = ModelOptions(max_rows=4)


@contextmanager
def service(base_model: Path, folder: Path, options: ModelOptions = OPTIONS) -> Iterator[TorchService]:
    torch_service = TorchService(ServiceSettings("agent", base_model, folder, options=options))
    yield torch_service
    torch_service.close()


def plan(base: int = 0) -> StepPlan:
    return StepPlan(
        base, TrainConfig(learning_rate=1e-3), lambda version, metrics: {"version": version, "parent": base}
    )


def step(torch_service: TorchService, base: int = 0) -> dict[str, float]:
    return torch_service._step(three_answers(), plan(base))


def test_new_weights_fit_the_memory_before_their_version_is_visible(
    base_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with service(base_model, tmp_path) as torch_service:
        load, visible = torch_service.loader.load, list[bool]()

        def note(directory: Path) -> nn.Module:
            visible.append(torch_service.store.path(1).exists())
            return load(directory)

        monkeypatch.setattr(torch_service.loader, "load", note)
        step(torch_service)
        assert visible == [False]
        assert torch_service.sampler.loaded() == (0, 1)
        assert torch_service.store.numbers() == [0, 1]
        answer = torch_service.sampler.submit([5, 6], SamplingParameters(max_tokens=2), 1).result(timeout=120)
        assert answer.version == 1


def test_a_version_that_could_not_be_published_does_not_answer(
    base_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with service(base_model, tmp_path) as torch_service:
        load, in_the_way = torch_service.loader.load, torch_service.store.path(1) / "file"

        def prevent_rename(directory: Path) -> nn.Module:
            in_the_way.parent.mkdir()
            in_the_way.touch()
            return load(directory)

        monkeypatch.setattr(torch_service.loader, "load", prevent_rename)
        with pytest.raises(UnavailableError, match="could not be written"):
            step(torch_service)
        monkeypatch.undo()
        assert torch_service.sampler.loaded() == (0,)
        shutil.rmtree(in_the_way.parent)
        assert not torch_service.load_version(1)


class Threads(TorchService):
    """Notes in which thread each update runs."""

    def _step(self, sequences: Any, plan: StepPlan) -> dict[str, float]:
        self.used = {*getattr(self, "used", ()), threading.get_ident()}
        time.sleep(0.05)  # long enough for a pool to take another thread for the next
        return super()._step(sequences, plan)


async def test_all_updates_run_in_one_thread(base_model: Path, tmp_path: Path) -> None:
    """Each thread would keep the memory that it computed with."""
    torch_service = Threads(ServiceSettings("agent", base_model, tmp_path, options=OPTIONS))
    waiting = [asyncio.ensure_future(torch_service.update(three_answers(), plan(base))) for base in (0, 1, 2)]
    await asyncio.gather(*waiting)
    assert torch_service.store.numbers() == [0, 1, 2, 3]
    assert len(torch_service.used) == 1
    torch_service.close()


@pytest.mark.parametrize(
    "options",
    [
        OPTIONS,
        OPTIONS.model_copy(update={"lora": LoraConfig(rank=2)}),
        OPTIONS.model_copy(update={"precision": "bfloat16"}),
    ],
    ids=["float32", "adapters", "bfloat16"],
)
def test_a_restarted_service_goes_on_bit_for_bit(base_model: Path, tmp_path: Path, options: ModelOptions) -> None:
    with service(base_model, tmp_path / "through", options) as through:
        step(through)
        step(through, 1)
    with service(base_model, tmp_path / "stopped", options) as stopped:
        step(stopped)
    with service(base_model, tmp_path / "stopped", options) as resumed:
        assert resumed.sampler.loaded() == (1,)
        step(resumed, 1)
    paths = [torch_service.store.path(2) for torch_service in (through, resumed)]
    for name in ("optimizer.safetensors", "adapter_model.safetensors" if options.lora else "model.safetensors"):
        assert (paths[0] / name).read_bytes() == (paths[1] / name).read_bytes(), name


def test_another_base_model_under_old_checkpoints_is_refused(base_model: Path, tmp_path: Path, tokenizer: Any) -> None:
    with service(base_model, tmp_path / "data"):
        pass
    other = create_model(tmp_path / "other", replace(SMALL, layers=1), tokenizer, seed=1)
    with pytest.raises(ConfigurationError, match=r"config\.json of base model .*restore the base"):
        TorchService(ServiceSettings("agent", other, tmp_path / "data", options=OPTIONS))
    retokenized = tmp_path / "retokenized"
    shutil.copytree(base_model, retokenized)
    (retokenized / "tokenizer.json").write_text((base_model / "tokenizer.json").read_text() + " ")
    with pytest.raises(ConfigurationError, match=r"tokenizer\.json of base model"):
        TorchService(ServiceSettings("agent", retokenized, tmp_path / "data", options=OPTIONS))


ADAPTERS = OPTIONS.model_copy(update={"lora": LoraConfig(rank=2)})


def start(base_model: Path, folder: Path, options: ModelOptions = ADAPTERS) -> None:
    with service(base_model, folder, options):
        pass


@pytest.fixture
def other_weights(tmp_path: Path, tokenizer: Any) -> Path:
    """A base model with the files of `base_model` but for its weights."""
    return create_model(tmp_path / "other", SMALL, tokenizer, seed=8)


def test_adapters_do_not_continue_on_other_weights_of_the_same_shape(
    base_model: Path, tmp_path: Path, other_weights: Path
) -> None:
    start(base_model, tmp_path / "data")
    start(base_model, tmp_path / "data")
    with pytest.raises(ConfigurationError, match=r"model\.safetensors of base model .*other.*restore the base model"):
        start(other_weights, tmp_path / "data")
    (other_weights / "model.safetensors").unlink()
    with pytest.raises(ConfigurationError, match=r"model\.safetensors of base model .*other.*restore the base model"):
        start(other_weights, tmp_path / "data")


def test_full_checkpoints_continue_beside_other_base_weights(
    base_model: Path, tmp_path: Path, other_weights: Path
) -> None:
    start(base_model, tmp_path / "data", OPTIONS)
    start(other_weights, tmp_path / "data", OPTIONS)


def test_a_base_model_that_is_not_there_is_named_with_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"Qwen/Nowhere lacks config\.json.*download the model first"):
        check_base_model(Path("Qwen/Nowhere"))
    with pytest.raises(ConfigurationError, match=r"config\.json is missing"):
        TorchService(ServiceSettings("agent", tmp_path / "nowhere", tmp_path / "data"))


def test_a_tokenizer_with_ids_beyond_the_vocabulary_is_refused(base_model: Path, tmp_path: Path) -> None:
    other = shutil.copytree(base_model, tmp_path / "other")
    tokenizer = load_tokenizer(other)
    tokenizer.add_tokens(["tic", "tac"])
    tokenizer.save_pretrained(str(other))
    with pytest.raises(ConfigurationError, match="has ids up to 385, the model's vocabulary only 384"):
        TorchService(ServiceSettings("agent", other, tmp_path / "data"))


@pytest.mark.parametrize("device", ["gpu", *(() if torch.cuda.is_available() else ("cuda",))])
def test_a_device_that_is_not_there_is_named(base_model: Path, tmp_path: Path, device: str) -> None:
    with pytest.raises(ConfigurationError, match=f"`device: {device}` cannot be used here"):
        TorchService(ServiceSettings("agent", base_model, tmp_path, options=ModelOptions(device=device)))


@pytest.mark.parametrize("spoilt", [float("nan"), float("inf")])
def test_a_gradient_that_is_not_finite_leaves_no_version_and_no_trace(
    base_model: Path, tmp_path: Path, spoilt: float
) -> None:
    with service(base_model, tmp_path / "spoiled") as spoiled, service(base_model, tmp_path / "plain") as plain:
        with pytest.raises(RejectedError, match=r"not finite.*Look at its advantages"):
            spoiled._step(three_answers(scale=spoilt), plan())
        assert spoiled.store.numbers() == [0]
        assert step(spoiled) == step(plain)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def leave_one_out(path: Path) -> None:
    tensors = load_file(path)
    del tensors["norm.scale.exp_avg"]
    save_file(tensors, path)


def reshape_one(path: Path) -> None:
    save_file(load_file(path) | {"norm.scale.exp_avg": torch.zeros(3)}, path)


@pytest.mark.parametrize("damage", [cut, leave_one_out, reshape_one])
def test_unreadable_moments_are_not_taken_for_a_fault_of_the_batch(
    base_model: Path, tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    with service(base_model, tmp_path) as torch_service:
        step(torch_service)
    damage(tmp_path / "checkpoints" / "0001" / "optimizer.safetensors")
    with service(base_model, tmp_path) as torch_service:
        with pytest.raises(UnavailableError, match=r"0001/optimizer\.safetensors cannot be read .* roll back"):
            step(torch_service, 1)
        assert torch_service.store.numbers() == [0, 1]
        step(torch_service, 0)


def test_missing_moments_begin_at_zero_with_a_log_line(
    base_model: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with service(base_model, tmp_path) as torch_service:
        step(torch_service)
    assert not caplog.records
    (tmp_path / "checkpoints" / "0001" / "optimizer.safetensors").unlink()
    with service(base_model, tmp_path) as torch_service:
        step(torch_service, 1)
    assert "0001 has no optimizer's state" in caplog.text


def test_a_reference_that_is_not_there_is_not_taken_for_a_fault_of_the_batch(base_model: Path, tmp_path: Path) -> None:
    config = TrainConfig(kl_coefficient=0.1, kl_reference_version=7)
    step_plan = StepPlan(0, config, lambda version, metrics: {"version": version, "parent": 0})
    with (
        service(base_model, tmp_path) as torch_service,
        pytest.raises(UnavailableError, match="kl_reference_version 7 has no checkpoint"),
    ):
        torch_service._step(three_answers(), step_plan)


class Starving:
    """A part of the service of which one method asks for more memory than there is."""

    def __init__(self, whole: Any, method: str) -> None:
        self._whole, self._method = whole, method

    def __getattr__(self, name: str) -> Any:
        return self._starve if name == self._method else getattr(self._whole, name)

    def _starve(self, *args: Any, **options: Any) -> None:
        torch.empty(2**50)
        raise AssertionError("no machine has a petabyte")


@pytest.mark.parametrize(("part", "method"), [("learner", "start_from"), ("learner", "step"), ("loader", "load")])
def test_an_update_out_of_memory_names_remedies_and_can_be_repeated(
    base_model: Path, tmp_path: Path, part: str, method: str
) -> None:
    with service(base_model, tmp_path / "starved") as starved, service(base_model, tmp_path / "plain") as plain:
        whole = getattr(starved, part)
        setattr(starved, part, Starving(whole, method))
        remedies = r"ran out of memory.*weights are unchanged.*max_tokens.*keep_versions"
        with pytest.raises(UnavailableError, match=remedies) as failure:
            step(starved)
        assert failure.value.retriable
        assert starved.store.numbers() == [0]
        assert starved.sampler.loaded() == (0,)
        setattr(starved, part, whole)
        assert step(starved) == step(plain)
        assert starved.store.numbers() == [0, 1]


@contextmanager
def memory_no_larger_by(size: int) -> Iterator[None]:
    """A machine on which this process can take no more than `size` bytes in addition to what it has."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (taken + size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def test_a_service_too_large_for_the_memory_names_remedies_and_ends(base_model: Path, tmp_path: Path) -> None:
    remedies = r"131072 rows of 128 tokens.*ran out of memory.*max_tokens.*max_rows.*lora.*precision"
    with memory_no_larger_by(2**30), pytest.raises(ConfigurationError, match=remedies):
        TorchService(ServiceSettings("agent", base_model, tmp_path, options=ModelOptions(max_rows=2**17)))


@contextmanager
def with_version_0_on_disk_only(base_model: Path, folder: Path) -> Iterator[TorchService]:
    with service(base_model, folder) as before:
        step(before)
    with service(base_model, folder) as torch_service:
        assert torch_service.sampler.loaded() == (1,)
        yield torch_service


def test_an_old_version_that_does_not_fit_the_memory_says_what_to_change(base_model: Path, tmp_path: Path) -> None:
    with with_version_0_on_disk_only(base_model, tmp_path) as torch_service:
        whole, torch_service.loader = torch_service.loader, cast(Any, Starving(torch_service.loader, "load"))
        with pytest.raises(UnavailableError, match=r"version 0 of agent.*ran out of memory.*max_rows.*keep_versions"):
            torch_service.load_version(0)
        assert torch_service.sampler.loaded() == (1,)
        torch_service.loader = whole
        assert torch_service.load_version(0)


def test_a_canary_is_read_and_stays_in_memory_while_newer_versions_come(base_model: Path, tmp_path: Path) -> None:
    with service(base_model, tmp_path, ModelOptions(max_rows=4, keep_versions=1)) as torch_service:
        step(torch_service)
        decision = PolicyDecision(
            model="agent", run_id="main", number=1, action="canary", serving=0, canary=1, share=0.5, reason="r",
            decided_at_ms=0
        )  # fmt: skip
        torch_service.serve(0)
        torch_service.use_decision(decision)
        assert torch_service.canary == 1
        step(torch_service, base=1)
        assert torch_service.loaded() == (0, 1, 2)
        torch_service.serve(0)
        assert torch_service.loaded() == (0, 1, 2)
        torch_service.serve(2)
        assert torch_service.canary is None, "what serves here is not what was decided"
        torch_service.use_decision(replace(decision, number=2, canary=7, serving=2))
        assert torch_service.loaded() == (2,), "a canary without a checkpoint holds nothing"


class CountingLoader:
    """Counts what it loads, each long enough for others to ask meanwhile, and may have it removed first."""

    def __init__(self, whole: Any, removed_first: Callable[[], None] = lambda: None) -> None:
        self._whole, self._removed_first, self.loads = whole, removed_first, 0

    def load(self, checkpoint: Path) -> Any:
        self.loads += 1
        self._removed_first()
        time.sleep(0.05)
        return self._whole.load(checkpoint)


def test_a_version_that_many_ask_for_at_once_is_read_once(base_model: Path, tmp_path: Path) -> None:
    with with_version_0_on_disk_only(base_model, tmp_path) as torch_service, ThreadPoolExecutor(8) as askers:
        torch_service.loader = counting = cast(Any, CountingLoader(torch_service.loader))
        assert all(askers.map(torch_service.load_version, [0] * 8))
        assert counting.loads == 1


def test_a_version_removed_while_it_is_read_does_not_exist(base_model: Path, tmp_path: Path) -> None:
    with with_version_0_on_disk_only(base_model, tmp_path) as torch_service:
        torch_service.loader = cast(Any, CountingLoader(torch_service.loader, lambda: torch_service.store.retire(0)))
        assert not torch_service.load_version(0)


def test_weights_that_do_not_fit_the_memory_are_not_called_damaged(tmp_path: Path) -> None:
    size = 2**32
    header = json.dumps({"x": {"dtype": "F32", "shape": [size // 4], "data_offsets": [0, size]}}).encode()
    with (tmp_path / "model.safetensors").open("wb") as file:  # a hole: it takes no space
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(8 + len(header) + size)
    with (
        memory_no_larger_by(2**30),
        pytest.raises(UnavailableError, match="reading ran out"),
        memory_failures("reading"),
    ):
        read_weights(tmp_path, SMALL)


def test_only_an_allocators_errors_are_taken_for_a_lack_of_memory() -> None:
    with pytest.raises(UnavailableError, match="the update ran out of memory"), memory_failures("the update"):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")
    with pytest.raises(UnavailableError), memory_failures("the update"):
        raise MemoryError
    with pytest.raises(RuntimeError, match="shapes"), memory_failures("the update"):
        raise RuntimeError("shapes do not match")


@contextmanager
def files_no_longer_than(size: int) -> Iterator[None]:
    """A disk that takes no more: the kernel cuts a write off there and refuses the next one."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_checkpoint_too_large_for_its_disk_leaves_nothing_behind(base_model: Path, tmp_path: Path) -> None:
    with service(base_model, tmp_path / "full") as full, service(base_model, tmp_path / "plain") as plain:
        with files_no_longer_than(50_000), pytest.raises(UnavailableError, match="free space on its disk"):
            step(full)
        assert [path.name for path in full.store.directory.iterdir()] == ["0000"]
        assert step(full) == step(plain)
        weights = [torch_service.store.path(1) / "model.safetensors" for torch_service in (full, plain)]
        assert weights[0].read_bytes() == weights[1].read_bytes()


def test_a_journal_that_does_not_fit_its_disk_stays_whole(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    journal = Journal(path)
    journal.started("h1", 0)
    before = path.read_bytes()
    with files_no_longer_than(len(before) + 10), pytest.raises(UnavailableError, match="free space"):
        journal.failed("h1", Failure("no", retriable=True))
    assert path.read_bytes() == before
    assert journal.unfinished() == {"h1": 0}
    journal.failed("h1", Failure("no", retriable=True))
    assert Journal(path).failure("h1") == Failure("no", retriable=True)


def test_packages_that_a_model_server_never_calls_look_uninstalled(monkeypatch: pytest.MonkeyPatch) -> None:
    others = {name: module for name, module in sys.modules.items() if name.partition(".")[0] not in UNUSED}
    monkeypatch.setattr(sys, "modules", others)
    assert all(importlib.util.find_spec(name) for name in UNUSED)
    leave_out_unused()
    assert not any(importlib.util.find_spec(name) for name in UNUSED)
