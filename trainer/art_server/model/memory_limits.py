"""Separate work that ran out of memory from work that is wrong, and say what to do about it."""

import errno
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import torch

from rollbus.schemas.errors import ConfigurationError, UnavailableError

ALLOCATOR = "can't allocate memory"
"""In the RuntimeError of torch's allocator on CPU."""


def ran_out_of_memory(error: Exception) -> bool:
    """Whether an allocator raised it, of Python or of torch, or the system where memory is mapped."""
    return (
        isinstance(error, MemoryError | torch.OutOfMemoryError)
        or (isinstance(error, RuntimeError) and ALLOCATOR in str(error))
        or (isinstance(error, OSError) and error.errno == errno.ENOMEM)
    )


def memory_failures(work: str) -> AbstractContextManager[None]:
    """Raise UnavailableError instead of an allocator's error; the caller's weights are unchanged."""
    return _translate_memory_errors(
        lambda reason: UnavailableError(
            f"{work} ran out of memory ({reason}); the weights are unchanged. Use a smaller art_server: "
            "max_tokens or max_rows, `lora`, `precision: bfloat16`, fewer keep_versions, or smaller batches"
        )
    )


def loading_failures(work: str) -> AbstractContextManager[None]:
    """Raise UnavailableError instead of an allocator's error, for weights that are loaded to be served."""
    return _translate_memory_errors(
        lambda reason: UnavailableError(
            f"{work} ran out of memory ({reason}); what is loaded goes on answering. Use a smaller art_server: "
            "max_rows or max_tokens, `lora`, `precision: bfloat16`, or fewer keep_versions"
        )
    )


def memory_refusals(work: str) -> AbstractContextManager[None]:
    """Raise ConfigurationError instead of an allocator's error, at the start."""
    return _translate_memory_errors(
        lambda reason: ConfigurationError(
            f"{work} ran out of memory ({reason}). Use a smaller art_server: max_tokens or max_rows, `lora`, "
            "or `precision: bfloat16`"
        )
    )


@contextmanager
def _translate_memory_errors(make_error: Callable[[str], Exception]) -> Iterator[None]:
    """Raise `make_error` instead of an allocator's error; any other error as it came."""
    try:
        yield
    except (MemoryError, RuntimeError, OSError) as error:
        if not ran_out_of_memory(error):
            raise
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        raise make_error(str(error).partition("\n")[0] or type(error).__name__) from error
