"""Components by kind and `_type`: what the `register_…` decorators fill, and what YAML is resolved against.

@register_trainer_adapter(config_type=MyAdapterConfig)
async def my_adapter(config: MyAdapterConfig, builder: Builder):
    yield MyAdapter(adapter_config=config)
"""

import difflib
import traceback
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any, Literal, TypeVar

from rollbus.harness.typed import (
    EvaluatorConfig,
    FunctionConfig,
    LLMConfig,
    TrainerAdapterConfig,
    TrainerConfig,
    TrajectoryBuilderConfig,
    TypedConfig,
)
from rollbus.schemas.errors import ConfigurationError

ENTRY_POINTS = "rollbus.harness"
"""Modules of installed packages that register components when they are imported."""
TOOLKIT = "nat"
"""The package that a user's modules come from."""
BUILT_IN = (
    "rollbus.harness.llms",
    "rollbus.harness.workflows",
    "rollbus.harness.evaluators",
    "rollbus.harness.art_components",
    "rollbus.harness.dpo_components",
)

Kind = Literal["llm", "function", "evaluator", "trajectory_builder", "trainer_adapter", "trainer"]
BASES: dict[Kind, type[TypedConfig]] = {
    "llm": LLMConfig,
    "function": FunctionConfig,
    "evaluator": EvaluatorConfig,
    "trajectory_builder": TrajectoryBuilderConfig,
    "trainer_adapter": TrainerAdapterConfig,
    "trainer": TrainerConfig,
}
Factory = TypeVar("Factory", bound=Callable[..., Any])
Make = Callable[[Any, Any], AbstractAsyncContextManager[Any]]
"""A configuration and the configured builder → the component, while the block lasts."""


@dataclass(frozen=True, slots=True)
class Registered:
    """One row."""

    config_type: type[TypedConfig]
    make: Make


_ROWS: dict[Kind, dict[str, Registered]] = {kind: {} for kind in BASES}


def register_trajectory_builder(config_type: type[TrajectoryBuilderConfig]) -> Callable[[Factory], Factory]:
    """Register an async generator that yields a TrajectoryBuilder."""
    return _decorator("trajectory_builder", config_type)


def register_trainer_adapter(config_type: type[TrainerAdapterConfig]) -> Callable[[Factory], Factory]:
    """Register an async generator that yields a TrainerAdapter."""
    return _decorator("trainer_adapter", config_type)


def register_trainer(config_type: type[TrainerConfig]) -> Callable[[Factory], Factory]:
    """Register an async generator that yields a Trainer."""
    return _decorator("trainer", config_type)


def register_evaluator(config_type: type[EvaluatorConfig]) -> Callable[[Factory], Factory]:
    """Register an async generator that yields an evaluator: an `EvaluatorInfo`, or what takes an `EvalInput`."""
    return _decorator("evaluator", config_type)


def register_function(
    config_type: type[FunctionConfig], framework_wrappers: list[str] | None = None
) -> Callable[[Factory], Factory]:
    """Register an async generator that yields a callable: a workflow, or a function that workflows ask for."""
    return _decorator("function", config_type)


def register_llm(config_type: type[LLMConfig]) -> Callable[[Factory], Factory]:
    """Register an async generator that yields an OpenAI-compatible client's settings."""
    return _decorator("llm", config_type)


def load_modules(modules: tuple[str, ...] = ()) -> None:
    """Import what registers components: ours, installed packages' and the named ones; raises ConfigurationError."""
    names = [*BUILT_IN, *(entry.module for entry in entry_points(group=ENTRY_POINTS)), *modules]
    for name in names:
        try:
            import_module(name)
        except ConfigurationError:
            raise
        except Exception as error:
            raise ConfigurationError(f"module {name!r} cannot be imported: {_why_not(name, error)}") from error


def _why_not(module: str, error: Exception) -> str:
    """Say why a module cannot be imported, and what to do about it."""
    if isinstance(error, ModuleNotFoundError) and error.name is not None:
        if error.name.split(".")[0] == TOOLKIT:
            return f"{error}; take the toolkit's names from here: `from rollbus.harness import …` (docs/from-nemo.md)"
        if module.startswith(error.name):
            return f"{error}; it must be next to the configuration file, in PYTHONPATH or installed"
        return f"{error}; install it"
    told = f"{type(error).__name__}: {error}"
    last = traceback.extract_tb(error.__traceback__)[-1]
    return told if isinstance(error, SyntaxError) else f"{told} ({last.filename}, line {last.lineno})"


def lookup(kind: Kind, type_name: str) -> Registered:
    """Return a row; raises ConfigurationError with the nearest name."""
    rows = _ROWS[kind]
    if type_name in rows:
        return rows[type_name]
    near = difflib.get_close_matches(type_name, rows, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"registered are: {', '.join(sorted(rows)) or 'none'}"
    raise ConfigurationError(
        f"no {kind.replace('_', ' ')} of type {type_name!r}; {hint}; "
        "name the module that registers it under `rollbus: imports:`"
    )


def row_of(config: TypedConfig) -> Registered:
    """Return the row that a configuration was chosen by."""
    kind = next(kind for kind, base in BASES.items() if isinstance(config, base))
    return lookup(kind, config.static_type() or config.type)


def _decorator(kind: Kind, config_type: type[TypedConfig]) -> Callable[[Factory], Factory]:
    name = config_type.static_type()
    if name is None or not issubclass(config_type, BASES[kind]):
        raise ConfigurationError(
            f"{config_type.__name__} cannot be registered as {kind.replace('_', ' ')}: "
            f'write class {config_type.__name__}({BASES[kind].__name__}, name="…")'
        )

    def register(factory: Factory) -> Factory:
        known = _ROWS[kind].get(name)
        if known is not None and known.config_type.__qualname__ != config_type.__qualname__:
            raise ConfigurationError(f"two {kind.replace('_', ' ')}s are called {name!r}; rename one")
        _ROWS[kind][name] = Registered(config_type, asynccontextmanager(factory))
        return factory

    return register
