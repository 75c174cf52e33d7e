"""Tell work that ran out of memory from work that is wrong, and say what to do about it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from rollbus.schemas.errors import ConfigurationError, UnavailableError

ALLOCATOR = "can't allocate memory"
"""What torch's allocator on CPU says, in a plain RuntimeError."""


def ran_out_of_memory(error: Exception) -> bool:
    """Whether an allocator raised it, of Python, of torch, or of a file that is mapped."""
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or (
        isinstance(error, RuntimeError) and ALLOCATOR in str(error)
    )


@contextmanager
def memory_failures(work: str) -> Iterator[None]:
    """UnavailableError in the place of any error of an allocator; the caller's weights are those of before."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not ran_out_of_memory(error):
            raise
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        raise UnavailableError(
            f"{work} ran out of memory ({_said(error)}); the weights are unchanged. Use a smaller art_server: "
            "max_tokens or max_rows, `lora`, `precision: bfloat16`, fewer keep_versions, or smaller batches"
        ) from error


@contextmanager
def memory_refusals(work: str) -> Iterator[None]:
    """ConfigurationError in the place of any error of an allocator, for what is taken at the start."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not ran_out_of_memory(error):
            raise
        raise ConfigurationError(
            f"{work} ran out of memory ({_said(error)}). Use a smaller art_server: max_tokens or max_rows, `lora`, "
            "or `precision: bfloat16`"
        ) from error


def _said(error: Exception) -> str:
    return str(error).partition("\n")[0] or type(error).__name__
