"""bfloat16 layers: sampler and trainer still agree as far as 8 bits of mantissa let them; the optimizer keeps 24."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from rollbus.trainer.art_server.checkpoints.checkpoint import save_checkpoint
from rollbus.trainer.art_server.checkpoints.loading import ModelLoader
from rollbus.trainer.art_server.learner.update import Learner
from rollbus.trainer.art_server.model.config import read_config
from rollbus.trainer.art_server.model.precision import choose_precision
from rollbus.trainer.art_server.sampler.requests import SamplingParameters
from rollbus.trainer.art_server.sampler.sampler import Sampler
from rollbus.trainer.backends.model_settings import LoraConfig, Precision
from rollbus.trainer.backends.sequences import TokenSequence
from rollbus.trainer.train_config import TrainConfig
from tests.sequences import make_sequence, three_answers

TOLERANCE = 0.01
"""Of one log-prob: activations carry 8 bits, and batch shapes change the order in which they are summed."""


def loader(base_model: Path, **options: Any) -> ModelLoader:
    return ModelLoader(read_config(base_model), precision="bfloat16", base=base_model, **options)


@pytest.mark.parametrize("lora", [None, LoraConfig()], ids=["all parameters", "adapters"])
def test_sampled_logprobs_are_those_of_the_update_within_bfloat16(
    base_model: Path, tokenizer: Any, tmp_path: Path, lora: LoraConfig | None
) -> None:
    loading = loader(base_model, lora=lora)
    learner = Learner(loading.config, loader=loading)
    if lora is None:
        learner.start_from(0, base_model)
    sampler = Sampler(loading.config, tokenizer, max_rows=8, dtype=loading.dtype)
    prompt = tokenizer.encode("choose a letter")
    try:
        for step in range(3):  # before and after updates
            checkpoint = tmp_path / f"{step:04d}"
            save_checkpoint(
                checkpoint,
                learner.model,
                loading.config,
                base=base_model,
                provenance={},
                lora=lora,
                masters=learner.masters.named,
            )
            sampler.load(step, loading.load(checkpoint))
            parameters = [SamplingParameters(max_tokens=24, seed=seed, ignore_eos=True) for seed in range(8)]
            answers = [sampler.submit(prompt, parameter, step) for parameter in parameters]
            sequences = sequences_of(prompt, [answer.result(timeout=120) for answer in answers])
            report = learner.step(sequences, TrainConfig(learning_rate=1e-2))
            assert 0 < report["logprob_difference_max"] < TOLERANCE
            assert report["grad_norm"] > 0
    finally:
        sampler.close()


def sequences_of(prompt: list[int], answers: list[Any]) -> list[TokenSequence]:
    """Each answer with the log-probs it was sampled with; advantages alternate their sign."""
    return [
        make_sequence(prompt, answer.token_ids, logprobs=answer.logprobs, advantage=1.0 if number % 2 else -1.0)
        for number, answer in enumerate(answers)
    ]


@pytest.mark.parametrize(
    ("has", "device", "chosen"),
    [
        ({"avx2": True, "avx512_f": True}, "cpu", "float32"),
        ({"avx512_bf16": True}, "cpu", "bfloat16"),
        ({"neon": True, "bf16": True}, "cpu", "bfloat16"),
        ({"avx2": True}, "cuda:0", "bfloat16"),
    ],
    ids=["AVX2", "AVX-512 BF16", "ARM", "a GPU"],
)
def test_auto_takes_bfloat16_where_the_device_multiplies_in_it(
    monkeypatch: pytest.MonkeyPatch, has: dict[str, bool], device: str, chosen: Precision
) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: has)
    assert choose_precision("auto", device) == chosen


def test_bfloat16_is_honoured_with_a_warning_where_it_is_slow(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx2": True})
    assert choose_precision("float32", "cpu") == "float32"
    assert choose_precision("bfloat16", "cuda") == "bfloat16"
    assert caplog.messages == []
    assert choose_precision("bfloat16", "cpu") == "bfloat16"
    assert "`precision: auto` takes what is faster" in caplog.text


def test_only_the_layers_are_rounded(base_model: Path) -> None:
    model: Any = loader(base_model).load(base_model)
    kinds = {name: parameter.dtype for name, parameter in model.named_parameters()}
    assert kinds.pop("tok_embeddings.weight") == torch.float32
    scales = {name: kind for name, kind in kinds.items() if name.endswith("scale")}
    assert set(scales.values()) == {torch.float32}
    assert {kind for name, kind in kinds.items() if name not in scales} == {torch.bfloat16}


def test_steps_too_small_for_bfloat16_add_up(base_model: Path) -> None:
    """A weight of 0.02 in bfloat16 moves by 1e-4 at least; here it moves by 1e-6 a step, and arrives."""
    learner = Learner(read_config(base_model), loader=loader(base_model))
    learner.start_from(0, base_model)
    before = {name: master.detach().clone() for name, master in learner.masters.named.items()}
    learner.step(three_answers(), TrainConfig(learning_rate=1e-6))
    largest_moves = [(master.detach() - before[name]).abs().max() for name, master in learner.masters.named.items()]
    assert max(map(float, largest_moves)) < 2e-6
    assert sum(float(move) > 0 for move in largest_moves) > len(largest_moves) / 2


class Reductions(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes each operation that adds numbers up, and the types of the numbers."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.types: dict[str, set[torch.dtype]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__.strip("_")
        adds = name != "index_put" or any(value is True for value in (*args, *(kwargs or {}).values()))
        if adds and (name in ADDED_WIDE or name.startswith(REDUCTIONS)):
            values = [value for value in tree_leaves((args, kwargs)) if isinstance(value, Tensor)]
            self.types.setdefault(name, set()).update(value.dtype for value in values if value.is_floating_point())
        return func(*args, **(kwargs or {}))

    def narrow(self) -> set[str]:
        """Return the operations that added up numbers of bfloat16 as such."""
        return {name for name, types in self.types.items() if torch.bfloat16 in types} - ADDED_WIDE


REDUCTIONS = (
    *("index_add", "index_put", "index_reduce", "segment_reduce", "scatter", "cum", "logcumsumexp", "logsumexp"),
    *("mean", "var", "std", "norm", "linalg", "softmax", "log_softmax", "prod", "embedding_dense_backward", "bincount"),
)
ADDED_WIDE = frozenset({"sum"})
"""Which torch adds up in float32: here the gradients of a key that several heads share."""


class WatchedSampler(Sampler):
    """A sampler whose thread notes its reductions."""

    reductions = Reductions()

    def _run(self) -> None:
        with self.reductions:
            super()._run()


def test_torch_stops_counting_in_bfloat16_but_where_it_adds_in_float32() -> None:
    ones, places = torch.ones(1000, dtype=torch.bfloat16), torch.zeros(1000, dtype=torch.long)
    counter = torch.zeros(1, dtype=torch.bfloat16)
    assert counter.index_add(0, places, ones).item() == 256
    assert counter.index_put((places,), ones, accumulate=True).item() == 256
    assert ones.sum().item() == 1000


def test_no_reduction_of_the_update_sees_bfloat16(base_model: Path) -> None:
    learner = Learner(read_config(base_model), loader=loader(base_model))
    learner.start_from(0, base_model)
    with Reductions() as reductions:
        learner.step(three_answers(), TrainConfig(learning_rate=1e-3))
    assert {"index_put", "embedding_dense_backward", "log_softmax"} <= reductions.types.keys(), "backwards, too"
    assert reductions.narrow() == set()


def test_no_reduction_of_the_sampler_sees_bfloat16(base_model: Path, tokenizer: Any) -> None:
    loading = loader(base_model)
    sampler = WatchedSampler(loading.config, tokenizer, max_rows=4, dtype=loading.dtype)
    try:
        sampler.load(0, loading.load(base_model))
        parameters = SamplingParameters(max_tokens=8, top_p=0.9, seed=1, ignore_eos=True, top_logprobs=3)
        sampler.submit(tokenizer.encode("choose a letter"), parameters, 0).result(timeout=120)
    finally:
        sampler.close()
    assert {"cumsum", "log_softmax"} <= sampler.reductions.types.keys()
    assert sampler.reductions.narrow() == set()
