"""A dataset through the workflow once, and every evaluator on what came of it: what `run_eval` does.

Runs side by side, nothing of it ends up in training: the episodes stay in memory (`local:`), where custom builders
find them as intermediate steps. An example whose workflow fails has no output and no score; the others continue.
"""

import asyncio
import json
import logging
import os
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from rollbus.harness.builder import Builder
from rollbus.harness.calling import call
from rollbus.harness.configuration import Configuration, DatasetConfig
from rollbus.harness.datasets import Example, load_dataset, repeated
from rollbus.harness.evaluation_models import (
    EvalInput,
    EvalInputItem,
    EvalOutput,
    EvalOutputItem,
    EvaluationRunConfig,
    EvaluationRunOutput,
)
from rollbus.harness.evaluators import output_of
from rollbus.harness.recording import Recording, steps_of
from rollbus.schemas.errors import ConfigurationError

logger = logging.getLogger(__name__)

TASK = "workflow"
NOT_HERE = ("skip_workflow", "skip_completed_entries", "adjust_dataset_size", "num_passes")
"""Fields of the toolkit's runs that have no effect here."""


class EvaluationRun:
    """One evaluation."""

    def __init__(
        self, config: EvaluationRunConfig, builder: Builder, *, progress: Callable[[int, int], None] | None = None
    ) -> None:
        """`progress` hears how many examples are done, of how many; what is asked and not done here is refused."""
        _refuse(config)
        self._config, self._builder, self._progress = config, builder, progress

    async def run_and_evaluate(self) -> EvaluationRunOutput:
        """Run and score everything; raises ConfigurationError and what making the components raises."""
        async with AsyncExitStack() as stack:
            builder = await self._configured(stack)
            recording = await _recording(builder, stack)
            examples = self._examples(builder.config)
            workflow = await self._workflow(builder, stack)
            concurrency = builder.config.eval.general.max_concurrency
            items = await self._run_all(examples, workflow, recording, concurrency)
            results = [(name, await self._scored(builder, name, items)) for name in builder.config.eval.evaluators]
        output = EvaluationRunOutput(eval_input=EvalInput(eval_input_items=items), evaluation_results=results)
        folder = builder.config.eval.general.output_dir
        return _written(output, folder) if self._config.write_output else output

    @asynccontextmanager
    async def prepared(self) -> AsyncIterator[tuple[Sequence[Example], Callable[..., Any]]]:
        """Yield the examples and the workflow, for a caller that runs them differently."""
        async with AsyncExitStack() as stack:
            builder = await self._configured(stack)
            yield self._examples(builder.config), await self._workflow(builder, stack)

    async def _configured(self, stack: AsyncExitStack) -> Builder:
        """Return the builder; one of its own where the run has another configuration file."""
        if not isinstance(self._config.config_file, Path | str):
            return self._builder
        from rollbus.harness.config_file import load_configuration

        config = load_configuration(Path(self._config.config_file), os.environ, self._config.override)
        other = Builder(config, recording=self._builder.recording, trained=self._builder.trained)
        return await stack.enter_async_context(other)

    def _examples(self, config: Configuration) -> Sequence[Example]:
        return repeated(examples_of(config, self._config.dataset), self._config.reps)

    async def _workflow(self, builder: Builder, stack: AsyncExitStack) -> Callable[..., Any]:
        if self._config.endpoint is None:
            return await builder.get_workflow()
        from rollbus.harness.endpoint import endpoint_workflow

        config = self._config
        return await stack.enter_async_context(
            endpoint_workflow(config.endpoint or "", config.endpoint_timeout, config.result_json_path, builder)
        )

    async def _run_all(
        self, examples: Sequence[Example], workflow: Callable[..., Any], recording: Recording, concurrency: int
    ) -> list[EvalInputItem]:
        places, done = asyncio.Semaphore(concurrency), 0

        async def one(example: Example) -> EvalInputItem:
            nonlocal done
            async with places:
                item = await run_example(example, workflow, recording)
            done += 1
            if self._progress is not None:
                self._progress(done, len(examples))
            return item

        return list(await asyncio.gather(*(one(example) for example in examples)))

    async def _scored(self, builder: Builder, name: str, items: list[EvalInputItem]) -> EvalOutput:
        evaluator = await builder.get_evaluator(name)
        finished = [item for item in items if not _failed(item)]
        scored = {found.id: found for found in (await evaluator.evaluate(finished)).eval_output_items}
        missing = "the evaluator gave no score"
        return output_of(
            [
                scored.get(item.id) or EvalOutputItem(id=item.id, score=None, error=_failed(item) or missing)
                for item in items
            ]
        )


def examples_of(config: Configuration, dataset: str | None) -> Sequence[Example]:
    """Return the examples of the configured dataset, or of the file in its place; raises ConfigurationError."""
    configured = config.eval.general.dataset
    if dataset is not None:
        return load_dataset(configured or DatasetConfig(file_path=Path(dataset)), Path(dataset))
    if configured is None:
        raise ConfigurationError("no dataset: set `eval.general.dataset`, or give --dataset")
    return load_dataset(configured)


def _refuse(config: EvaluationRunConfig) -> None:
    """Raise ConfigurationError where a run asks for what is only the toolkit's: silence would be a wrong result."""
    fields = type(config).model_fields
    asked = [name for name in NOT_HERE if getattr(config, name) != fields[name].default]
    if asked:
        raise ConfigurationError(f"EvaluationRunConfig: {', '.join(asked)} cannot be set here; leave the default")


async def _recording(builder: Builder, stack: AsyncExitStack) -> Recording:
    """Return the builder's recording; one in memory, for this run only, where it has none."""
    if builder.recording is None:
        builder.recording = Recording("eval.")
        stack.push_async_callback(builder.recording.close)
        stack.callback(setattr, builder, "recording", None)
    return builder.recording


async def run_example(example: Example, workflow: Callable[..., Any], recording: Recording) -> EvalInputItem:
    """Run one example in an episode that stays in memory; a failure is in the item."""
    episode_id = recording.local_episode_id()
    recording.watch(episode_id)
    output, error = None, None
    try:
        recorder = recording.recorder
        async with recorder.episode(task=TASK, example_id=example.id, episode_id=episode_id):
            output = await call(workflow, example.input)
    except Exception as failure:
        error = f"{type(failure).__name__}: {failure}"
        logger.warning("example %s failed: %s", example.id, error)
    steps = steps_of(await recording.take(episode_id))
    return item_of(example, output, steps, error)


def item_of(example: Example, output: Any, steps: list[Any], error: str | None = None) -> EvalInputItem:
    """Return what evaluators are given."""
    return EvalInputItem(
        id=example.id,
        input_obj=example.input,
        expected_output_obj=example.expected,
        output_obj=output if error is None else Failed(error),
        trajectory=steps,
        full_dataset_entry=example.entry,
    )


class Failed(str):
    """In place of an output: why there is none."""

    __slots__ = ()


def _failed(item: EvalInputItem) -> str | None:
    return str(item.output_obj) if isinstance(item.output_obj, Failed) else None


def _written(output: EvaluationRunOutput, folder: Path) -> EvaluationRunOutput:
    folder.mkdir(parents=True, exist_ok=True)
    workflow_file = folder / "workflow_output.json"
    items = [item.model_dump(mode="json", fallback=str) for item in output.eval_input.eval_input_items]
    workflow_file.write_text(json.dumps(items, indent=2), encoding="utf-8")
    files = []
    for name, found in output.evaluation_results:
        files.append(folder / f"{name}_output.json")
        files[-1].write_text(found.model_dump_json(indent=2), encoding="utf-8")
    return output.model_copy(update={"workflow_output_file": workflow_file, "evaluator_output_files": files})
