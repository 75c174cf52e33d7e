"""Keys and values of every request in flight, one row each, behind the attention layers.

torchtune's own cache moves all rows forward together; here each row has its own position, so requests join and leave
between decoding steps. One pool serves all loaded weight versions, since a row belongs to one request. A free row keeps
what it holds until it is taken, and later requests copy the beginning that they share with it.
"""

import math
import mmap
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from rollbus.trainer.art_server.model.config import ModelConfig
from rollbus.trainer.art_server.sampler.prefixes import PrefixIndex, Shared

KEPT_ROWS = 16
"""Free rows whose contents are kept before untouched rows are taken into use."""


class CachePool:
    """Rows of keys and values for `rows` sequences of up to `config.max_tokens` tokens."""

    def __init__(self, config: ModelConfig, rows: int, *, device: torch.device, dtype: torch.dtype) -> None:
        self.rows = rows
        self.spare_row = rows
        """One more, which never belongs to a request: for what pads a recorded step."""
        self.max_tokens = config.max_tokens
        self.prefixes = PrefixIndex()
        self._untouched = list(range(rows))[::-1]
        self._kept_rows: dict[int, None] = {}
        """Free rows that hold something, the one that was useful longest ago first."""
        self._layers = [_LayerCache(self, rows + 1, config, device=device, dtype=dtype) for _ in range(config.layers)]
        self.rows_B: Tensor | None = None
        self.positions_B_T: Tensor | None = None
        self.length = 0
        """Positions to attend over; 0 while prompts are read, when a row attends to its own prompt only."""

    @property
    def free_rows(self) -> int:
        return len(self._untouched) + len(self._kept_rows)

    def take(self, prompts: Sequence[tuple[int, Sequence[int]]]) -> list[int]:
        """Return a free row for each version and prompt; rows that hold what a prompt begins with go last."""
        for version, prompt in prompts:
            self._mark_useful(self.prefixes.find(version, prompt).row)
        return [self._take(version, prompt) for version, prompt in prompts]

    def _take(self, version: int, prompt: Sequence[int]) -> int:
        if not self._kept_rows or (self._untouched and len(self._kept_rows) < KEPT_ROWS):
            return self._untouched.pop()
        shared = self.prefixes.find(version, prompt)
        row = next((row for row in self._kept_rows if row != shared.row), shared.row)
        del self._kept_rows[row]
        if row == shared.row:  # the only one left: it keeps the beginning, for this prompt and for others
            self.prefixes.hold(row, version, prompt[: shared.tokens])
        else:
            self.prefixes.forget(row)
        return row

    def _mark_useful(self, row: int) -> None:
        if row in self._kept_rows:
            self._kept_rows[row] = self._kept_rows.pop(row)

    def give_back(self, row: int, version: int, tokens: Sequence[int]) -> None:
        """Free a row that holds these tokens as this version reads them."""
        self.prefixes.hold(row, version, tokens)
        self._kept_rows[row] = None

    def copy_prefixes(self, shared_by_row: Mapping[int, Shared]) -> None:
        """Copy into each row the beginning that another row holds."""
        rows_by_shared: dict[Shared, list[int]] = {}
        for row, shared in shared_by_row.items():
            rows_by_shared.setdefault(shared, []).append(row)
            self._mark_useful(shared.row)
        for shared, rows in rows_by_shared.items():
            for layer in self._layers:
                layer.copy(shared.row, rows, shared.tokens)

    def attach(self, model: nn.Module) -> None:
        """Let `model`'s attention layers read and write this pool."""
        layers: Any = model.layers
        for layer, cache in zip(layers, self._layers, strict=True):
            layer.attn.kv_cache = cache

    def aim(self, rows_B: Tensor, positions_B_T: Tensor, length: int) -> None:
        """Say where the next forward pass writes and how far it reads."""
        self.rows_B, self.positions_B_T, self.length = rows_B, positions_B_T, length


class _LayerCache:
    """What `network.Attention` calls as its `kv_cache`."""

    def __init__(
        self, pool: CachePool, rows: int, config: ModelConfig, *, device: torch.device, dtype: torch.dtype
    ) -> None:
        shape = (rows, config.kv_heads, config.max_tokens, config.head_width)
        self._pool = pool
        self._keys, self._values = (_zeros(shape, device=device, dtype=dtype) for _ in range(2))

    def copy(self, source: int, targets: list[int], length: int) -> None:
        """Copy the first positions of a row to others."""
        for cached in (self._keys, self._values):
            cached[targets, :, :length] = cached[source, :, :length]

    def update(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Store [B, K, T, H] and return what the rows attend over, [B, K, S, H]."""
        pool = self._pool
        assert pool.rows_B is not None, "aim() comes before the forward pass"
        where = (pool.rows_B[:, None], slice(None), pool.positions_B_T)  # [B, T, K, H]
        self._keys[where] = keys.transpose(1, 2)
        self._values[where] = values.transpose(1, 2)
        if pool.length == 0:
            return keys, values
        caches = (cached[:, :, : pool.length] for cached in (self._keys, self._values))
        keys, values = (cache.index_select(0, pool.rows_B) for cache in caches)  # indexing copies four times as slowly
        return keys, values


def _zeros(shape: tuple[int, ...], *, device: torch.device, dtype: torch.dtype) -> Tensor:
    """Zeros that take memory of the processor only where they are written: most rows are short.

    Huge pages would take 2 MB for a token of each head. NumPy asks for them, and some systems need no asking.
    """
    if device.type != "cpu":
        return torch.zeros(shape, device=device, dtype=dtype)
    memory = mmap.mmap(-1, math.prod(shape) * dtype.itemsize)
    if sys.platform == "linux":
        memory.madvise(mmap.MADV_NOHUGEPAGE)
    return torch.frombuffer(memory, dtype=dtype).view(shape)
