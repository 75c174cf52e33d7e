"""Which part of the agent the running code is, by the innermost `function` block; it follows tasks by itself."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar

FUNCTION: ContextVar[str] = ContextVar("rollbus_function", default="")
current_function = FUNCTION.get
"""Return the name given by the innermost `function` block; empty outside."""


@contextmanager
def function(name: str) -> Iterator[None]:
    """Mark the calls inside as made by this part of the agent, for `target_functions`."""
    token = FUNCTION.set(name)
    try:
        yield
    finally:
        with suppress(ValueError):  # a generator that another task closed leaves the block in another context
            FUNCTION.reset(token)
