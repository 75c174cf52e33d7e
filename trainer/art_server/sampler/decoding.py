"""One decoding step: the newest token of each request in, logits out.

On a GPU the kernels of a step run for a few milliseconds and take 30 to launch one by one. So a step is recorded once
for each model, number of rows and length, both rounded up, and replayed: `torch.cuda.CUDAGraph`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from rollbus.trainer.art_server.model.model import head, trunk
from rollbus.trainer.art_server.sampler.cache import CachePool

LEAST_LENGTH = 128
"""Positions that a recorded step attends over at least."""

Record = Callable[[Callable[[], Tensor]], tuple[Callable[[], None], Tensor]]
"""A computation → what runs it again, and where its result then is."""


@dataclass(frozen=True, slots=True)
class _Step:
    """A recorded step."""

    inputs_3_B: Tensor
    """Token ids, rows and positions; filled before each replay."""
    replay: Callable[[], None]
    logits_B_V: Tensor


class Decoding:
    """Decodes rows of a pool, in one thread."""

    def __init__(self, pool: CachePool, device: torch.device, record: Record | None = None) -> None:
        self._pool, self._device, self._record = pool, device, record
        self._steps: WeakKeyDictionary[nn.Module, dict[tuple[int, int], _Step]] = WeakKeyDictionary()

    def decode(
        self, model: nn.Module, token_ids: Sequence[int], rows: Sequence[int], positions: Sequence[int]
    ) -> Tensor:
        """Return logits [B, V] after the newest token of each row, valid until the next call."""
        length = max(positions) + 1
        if self._record is None:
            return self._forward(model, torch.tensor([token_ids, rows, positions], device=self._device), length)
        length = round_up(max(length, LEAST_LENGTH), self._pool.max_tokens)
        spare = round_up(len(rows), self._pool.rows) - len(rows)
        padded = [[*token_ids, *[0] * spare], [*rows, *[self._pool.spare_row] * spare], [*positions, *[0] * spare]]
        step = self._find_step(self._record, model, torch.tensor(padded, device=self._device), length)
        step.replay()
        return step.logits_B_V[: len(rows)]

    def _find_step(self, record: Record, model: nn.Module, inputs_3_B: Tensor, length: int) -> _Step:
        """Return the step of this shape with its inputs set."""
        steps = self._steps.setdefault(model, {})
        shape = (inputs_3_B.shape[1], length)
        if shape in steps:
            steps[shape].inputs_3_B.copy_(inputs_3_B)
        else:
            steps[shape] = _Step(inputs_3_B, *record(lambda: self._forward(model, inputs_3_B, length)))
        return steps[shape]

    def _forward(self, model: nn.Module, inputs_3_B: Tensor, length: int) -> Tensor:
        token_ids_B, rows_B, positions_B = inputs_3_B
        positions_B_1 = positions_B[:, None]
        mask_B_1_S = torch.arange(length, device=self._device)[None, None] <= positions_B_1[:, :, None]
        self._pool.aim(rows_B, positions_B_1, length=length)
        hidden_B_1_D = trunk(model, token_ids_B[:, None], positions_B_T=positions_B_1, mask_B_T_S=mask_B_1_S)
        return head(model, hidden_B_1_D[:, 0])


class CudaRecorder:
    """Records computations as graphs that share their memory: the result of one is gone when another is replayed."""

    def __init__(self) -> None:
        self._memory = torch.cuda.graph_pool_handle()

    def __call__(self, compute: Callable[[], Tensor]) -> tuple[Callable[[], None], Tensor]:
        compute()  # what libraries set up at a first call cannot be recorded
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._memory, capture_error_mode="thread_local"):  # an update may run, too
            result = compute()
        return graph.replay, result


def round_up(count: int, most: int) -> int:
    """Return the least power of two that is not below the count, or `most` if that is less."""
    return min(1 << (count - 1).bit_length(), most)
