"""Tell work that ran out of memory from work that is wrong, and say what to do about it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import torch

from rollbus.schemas.errors import ConfigurationError, UnavailableError

ALLOCATOR = "can't allocate memory"
"""What torch's allocator on CPU says, in a plain RuntimeError."""


def ran_out_of_memory(error: Exception) -> bool:
    """Whether an allocator raised it, of Python, of torch, or of a file that is mapped."""
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or (
        isinstance(error, RuntimeError) and ALLOCATOR in str(error)
    )


def memory_failures(work: str) -> AbstractContextManager[None]:
    """UnavailableError in the place of any error of an allocator; the caller's weights are those of before."""
    return _told_as(
        lambda said: UnavailableError(
            f"{work} ran out of memory ({said}); the weights are unchanged. Use a smaller art_server: "
            "max_tokens or max_rows, `lora`, `precision: bfloat16`, fewer keep_versions, or smaller batches"
        )
    )


def loading_failures(work: str) -> AbstractContextManager[None]:
    """UnavailableError in the place of any error of an allocator, for weights that are to be served beside others."""
    return _told_as(
        lambda said: UnavailableError(
            f"{work} ran out of memory ({said}); what is loaded goes on answering. Use a smaller art_server: "
            "max_rows or max_tokens, `lora`, `precision: bfloat16`, or fewer keep_versions"
        )
    )


def memory_refusals(work: str) -> AbstractContextManager[None]:
    """ConfigurationError in the place of any error of an allocator, for what is taken at the start."""
    return _told_as(
        lambda said: ConfigurationError(
            f"{work} ran out of memory ({said}). Use a smaller art_server: max_tokens or max_rows, `lora`, "
            "or `precision: bfloat16`"
        )
    )


@contextmanager
def _told_as(tell: Callable[[str], Exception]) -> Iterator[None]:
    """Raise what `tell` makes of an allocator's error instead of it; any other error as it came."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not ran_out_of_memory(error):
            raise
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        raise tell(str(error).partition("\n")[0] or type(error).__name__) from error
