"""Keys and values of every request in flight, one row each, behind the attention layers.

torchtune's own cache moves all rows forward together; here each row has its own position, so requests join and leave
between decoding steps. One pool serves all loaded weight versions, since a row belongs to one request.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from rollbus.trainer.service.model.config import ModelConfig


class CachePool:
    """Rows of keys and values for `rows` sequences of up to `config.max_tokens` tokens."""

    def __init__(self, config: ModelConfig, rows: int, *, device: torch.device, dtype: torch.dtype) -> None:
        self.rows = rows
        self.max_tokens = config.max_tokens
        self._free = list(range(rows))[::-1]
        self._layers = [_LayerCache(self, rows, config, device=device, dtype=dtype) for _ in range(config.layers)]
        self.rows_B: Tensor | None = None
        self.positions_B_T: Tensor | None = None
        self.length = 0
        """Positions to attend over; 0 while prompts are read, when a row attends to its own prompt only."""

    @property
    def free_rows(self) -> int:
        return len(self._free)

    def take(self) -> int:
        return self._free.pop()

    def give_back(self, row: int) -> None:
        self._free.append(row)

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
        shape = (rows, config.max_tokens, config.kv_heads, config.head_width)
        self._pool = pool
        self._keys, self._values = (_zeros(shape, device=device, dtype=dtype) for _ in range(2))

    def update(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Store [B, K, T, H] and return what the rows attend over, [B, K, S, H]."""
        pool = self._pool
        assert pool.rows_B is not None, "aim() comes before the forward pass"
        where = (pool.rows_B[:, None], pool.positions_B_T)
        self._keys[where] = keys.transpose(1, 2)
        self._values[where] = values.transpose(1, 2)
        if pool.length == 0:
            return keys, values
        read = self._keys[pool.rows_B, : pool.length], self._values[pool.rows_B, : pool.length]
        return read[0].transpose(1, 2), read[1].transpose(1, 2)


def _zeros(shape: tuple[int, ...], *, device: torch.device, dtype: torch.dtype) -> Tensor:
    """Zeros that take memory of the processor only where they are written: most rows are short."""
    if device.type != "cpu":
        return torch.zeros(shape, device=device, dtype=dtype)
    size = torch.empty((), dtype=dtype).element_size()
    return torch.from_numpy(np.zeros((*shape[:-1], shape[-1] * size), dtype=np.uint8)).view(dtype)
