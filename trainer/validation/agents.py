"""The agent of an evaluation: a callable of the user's, by name or by `module:function`.

It receives one task and the model to ask, plays an episode, and returns its metrics: numbers by name, the same names
for every task, 0 or 1 for a share. It may be sync (then it runs in a thread) or async. It must not record what it
plays, or held-out tasks would end up in training: use a client that `Recorder.wrap` does not wrap.
"""

import inspect
import pkgutil
import sys
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from rollbus.schemas.errors import ConfigurationError

ENTRY_POINTS = "rollbus.evaluation_agents"

Metrics = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class EvaluationTask:
    """One episode to play."""

    index: int
    """From 0; tasks with the same index are the same in every evaluation of a set."""
    example_id: str
    attempt: int
    """From 0: how often the example was played before in this evaluation."""
    seed: int
    """For sampling and every other random choice; depends on the set's seed, the example and the attempt."""
    example: Mapping[str, Any] = field(default_factory=dict)
    """The row of the dataset; empty without one."""


@dataclass(frozen=True, slots=True)
class EvaluationContext:
    """The model to ask."""

    model: str
    """`name@version`, so that this version answers whichever one serves."""
    base_url: str
    """OpenAI-compatible, ending in /v1."""
    api_key: str = "none"
    options: Mapping[str, Any] = field(default_factory=dict)
    """As the settings give them."""


Agent = Callable[[EvaluationTask, EvaluationContext], Metrics | Awaitable[Metrics]]


def load_agent(name: str, *, folder: Path | None = None) -> Agent:
    """Return the agent of an entry point, or of `module:function`, whose module may be in `folder`.

    Raise ConfigurationError if it does not exist or cannot be called.
    """
    for entry in entry_points(group=ENTRY_POINTS, name=name):
        return _load_callable(name, entry.load)
    if not all(name.partition(":")):
        names = ", ".join(sorted(entry_points(group=ENTRY_POINTS).names)) or "none"
        raise ConfigurationError(
            f"no evaluation agent {name!r}: name one of the entry-point group {ENTRY_POINTS} ({names}), or "
            "`module:function`"
        )
    if folder is not None and str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    return _load_callable(name, lambda: pkgutil.resolve_name(name))


def _load_callable(name: str, load: Callable[[], Any]) -> Agent:
    try:
        loaded = load()
    except Exception as error:  # a user's module may raise anything
        raise ConfigurationError(f"evaluation agent {name!r} cannot be loaded: {error!r}") from error
    try:
        inspect.signature(loaded).bind(None, None)
    except (TypeError, ValueError) as error:
        raise ConfigurationError(
            f"evaluation agent {name!r} must be callable with a task and a context; it is {loaded!r} ({error})"
        ) from error
    agent: Agent = loaded
    return agent
