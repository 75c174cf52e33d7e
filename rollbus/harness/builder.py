"""A configuration → its components, each made once, when it is first asked for, and closed together.

What `register_…` functions are given as `builder`: they ask it for models, functions and evaluators by name. Model
calls that run inside an episode of `recorder` are recorded; others pass untouched.
"""

from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from rollbus.harness import registry
from rollbus.harness.typed import LLMConfig, TypedConfig
from rollbus.schemas.errors import ConfigurationError

if TYPE_CHECKING:
    from rollbus.harness.configuration import Configuration
    from rollbus.harness.evaluators import EvaluatorInfo
    from rollbus.harness.interfaces import Trainer, TrainerAdapter, TrajectoryBuilder
    from rollbus.harness.recording import Recording

Entry = TypeVar("Entry", bound=TypedConfig)


@dataclass(frozen=True, slots=True)
class TrainedModel:
    """The model in training."""

    name: str
    """As its endpoint serves it."""
    base_model: str
    """An entry under `llms` that names this one is asked for `name` instead: the base would never improve."""

    def name_for(self, asked: str) -> str:
        """Return the name that answers where a configuration asks for this one."""
        return self.name if asked == self.base_model else asked


class Builder:
    """Makes components."""

    def __init__(
        self,
        config: "Configuration",
        *,
        recording: "Recording | None" = None,
        trained: TrainedModel | None = None,
        override_workflow: Callable[..., Any] | None = None,
    ) -> None:
        """Without `recording` nothing is recorded; `override_workflow` replaces the configured one."""
        self.config, self.recording, self.trained = config, recording, trained
        self._workflow = override_workflow
        self._made: dict[tuple[str, str], Any] = {}
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    def get_llm_config(self, name: str) -> LLMConfig:
        """Return an entry under `llms`."""
        return _entry("llms", self.config.llms, name)

    async def get_llm(self, name: str, wrapper_type: str = "openai") -> Any:
        """Return a model as a framework takes it: openai, langchain, llama_index or adk; its calls are recorded."""
        from rollbus.harness.llms import as_framework

        model = await self._make("llm", name, self.get_llm_config(name))
        return as_framework(model, str(wrapper_type))

    async def get_function(self, name: str) -> Callable[..., Any]:
        """Return a function; model calls inside it carry its name, for `target_functions`."""
        function = await self._make("function", name, _entry("functions", self.config.functions, name))
        return self._named(function, name)

    async def get_workflow(self) -> Callable[..., Any]:
        """Return the workflow."""
        if self._workflow is not None:
            return self._workflow
        if self.config.workflow is None:
            raise ConfigurationError("the configuration has no `workflow`, and no --endpoint was given")
        return await self._make("function", "<workflow>", self.config.workflow)  # type: ignore[no-any-return]

    async def get_evaluator(self, name: str) -> "EvaluatorInfo":
        """Return an evaluator."""
        from rollbus.harness.evaluators import as_evaluator

        config = _entry("eval.evaluators", self.config.eval.evaluators, name)
        return as_evaluator(await self._make("evaluator", name, config), config)

    async def get_trajectory_builder(self, name: str) -> "TrajectoryBuilder":
        """Return a trajectory builder; it can run the workflow."""
        config = _entry("trajectory_builders", self.config.trajectory_builders, name)
        made: TrajectoryBuilder = await self._make("trajectory_builder", name, config)
        made.builder = self
        return made

    async def get_trainer_adapter(self, name: str) -> "TrainerAdapter":
        """Return a trainer adapter."""
        config = _entry("trainer_adapters", self.config.trainer_adapters, name)
        return await self._make("trainer_adapter", name, config)  # type: ignore[no-any-return]

    async def get_trainer(self, name: str) -> "Trainer":
        """Return a trainer."""
        config = _entry("trainers", self.config.trainers, name)
        return await self._make("trainer", name, config)  # type: ignore[no-any-return]

    async def _make(self, kind: str, name: str, config: TypedConfig) -> Any:
        if (kind, name) not in self._made:
            row = registry.row_of(config)
            self._made[kind, name] = await self._stack.enter_async_context(row.make(config, self))
        return self._made[kind, name]

    def _named(self, function: Callable[..., Any], name: str) -> Callable[..., Any]:
        if self.recording is None:
            return function
        recorder = self.recording.recorder

        async def named(*args: Any, **kwargs: Any) -> Any:
            from rollbus.harness.calling import call

            with recorder.function(name):
                return await call(function, *args, **kwargs)

        return named


def _entry(table: str, entries: dict[str, Entry], name: str) -> Entry:
    if name not in entries:
        known = ", ".join(sorted(entries)) or "none"
        raise ConfigurationError(f"{table} has no entry {name!r}; there are: {known}")
    return entries[name]
