"""Which part of the agent the running code is: by the innermost `function` block, which follows tasks by itself, else
as its framework traces it.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar

FUNCTION: ContextVar[str] = ContextVar("rollbus_function", default="")
AGENT_SOURCES: list[Callable[[], str]] = []
"""Return the name of the agent that the running code is in, as its framework has it; they raise nothing."""


def current_function() -> str:
    """Return the name given by the innermost `function` block, else by a source; empty outside."""
    return FUNCTION.get() or next((name for source in AGENT_SOURCES if (name := source())), "")


@contextmanager
def function(name: str) -> Iterator[None]:
    """Mark the calls inside as made by this part of the agent, for `target_functions`."""
    token = FUNCTION.set(name)
    try:
        yield
    finally:
        with suppress(ValueError):  # a generator that another task closed leaves the block in another context
            FUNCTION.reset(token)
