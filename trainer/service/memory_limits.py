"""Tell an update that ran out of memory from one that is wrong, and say what to do about it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from rollbus.schemas.errors import UnavailableError

ALLOCATOR = "can't allocate memory"
"""What torch's allocator on CPU says, in a plain RuntimeError."""


@contextmanager
def memory_failures(work: str) -> Iterator[None]:
    """UnavailableError in the place of any error of an allocator; the caller's weights are those of before."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        ran_out = isinstance(error, MemoryError | torch.OutOfMemoryError) or ALLOCATOR in str(error)
        if not ran_out:
            raise
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        said = str(error).partition("\n")[0] or type(error).__name__
        raise UnavailableError(
            f"{work} ran out of memory ({said}); the weights are "
            "unchanged. Use a smaller art_server: max_tokens or max_rows, `lora`, `precision: bfloat16`, or smaller "
            "batches"
        ) from error
