"""Decoding as a GPU does it, by steps of fixed shapes that are recorded and replayed; a recorder for CPUs stands in."""

import gc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, nn

from rollbus.trainer.art_server.model.model import head, trunk
from rollbus.trainer.art_server.sampler.cache import CachePool
from rollbus.trainer.art_server.sampler.decoding import Decoding, round_up
from tests.models import load_model

CPU = torch.device("cpu")


def record(compute: Callable[[], Tensor]) -> tuple[Callable[[], None], Tensor]:
    result = compute().clone()

    def replay() -> None:
        result.copy_(compute())

    return replay, result


def full_pass(model: nn.Module, token_ids: list[int]) -> Tensor:
    return head(model, trunk(model, torch.tensor([token_ids])))[0, -1]


@torch.inference_mode()
def test_rows_joining_recorded_steps_get_the_logits_of_a_full_pass(base_model: Path) -> None:
    plain, config = load_model(base_model)
    model, _ = load_model(base_model)
    pool = CachePool(config, 5, device=CPU, dtype=torch.float32)
    pool.attach(model)
    decoding = Decoding(pool, CPU, record)
    texts: dict[int, list[int]] = {0: [], 3: [], 4: []}
    for step in range(12):
        rows = [row for row in texts if row <= step and (row != 3 or step < 8)]  # 1 row, then 3 as if 4, then 2
        for row in rows:
            texts[row].append(5 + (7 * step + 11 * row) % 90)
        logits_B_V = decoding.decode(
            model, [texts[row][-1] for row in rows], rows, [len(texts[row]) - 1 for row in rows]
        )
        expected_B_V = torch.stack([full_pass(plain, texts[row]) for row in rows])
        torch.testing.assert_close(logits_B_V, expected_B_V, rtol=0, atol=1e-5)


@torch.inference_mode()
def test_a_step_is_recorded_once_for_each_model_and_shape(base_model: Path) -> None:
    """The recordings go when their model goes."""
    model, config = load_model(base_model)
    pool = CachePool(config, 4, device=CPU, dtype=torch.float32)
    pool.attach(model)
    recorded: list[tuple[int, ...]] = []

    def record_shape(compute: Callable[[], Tensor]) -> tuple[Callable[[], None], Tensor]:
        result = compute()
        recorded.append(tuple(result.shape))
        return lambda: None, result

    decoding = Decoding(pool, CPU, record_shape)
    for rows in ([0], [1], [0, 1, 2], [0, 1, 2, 3], [2]):
        decoding.decode(model, [7] * len(rows), rows, [0] * len(rows))
    assert recorded == [(1, config.vocabulary), (4, config.vocabulary)]
    other, _ = load_model(base_model)
    pool.attach(other)
    decoding.decode(other, [7], [0], [0])
    assert len(recorded) == 3
    assert len(decoding._steps) == 2
    del model
    gc.collect()
    assert len(decoding._steps) == 1


def test_sizes_are_rounded_up_to_powers_of_two_within_the_limit() -> None:
    assert [round_up(count, 48) for count in (1, 2, 3, 5, 33, 48)] == [1, 2, 4, 8, 48, 48]


@torch.inference_mode()
def test_rows_take_memory_for_their_tokens_and_not_for_what_they_may_hold(base_model: Path) -> None:
    model, config = load_model(base_model)
    rows, resident = 24, resident_bytes()
    pool = CachePool(replace(config, max_tokens=2**15), rows, device=CPU, dtype=torch.float32)
    pool.attach(model)
    for row in range(rows):
        pool.aim(torch.tensor([row]), torch.arange(4)[None], 0)
        trunk(model, torch.tensor([[5, 6, 7, 8]]))
    assert resident_bytes() - resident < 24 * 2**20


def resident_bytes() -> int:
    """Return what this process holds of the machine's memory."""
    (line,) = (line for line in Path("/proc/self/smaps_rollup").read_text().splitlines() if line.startswith("Rss:"))
    return int(line.split()[1]) * 1024
