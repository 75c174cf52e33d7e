"""The trainer's validation: measure the versions that are due during training, one at a time, and return the records.

Agent and dataset are loaded at the start, as the settings name them. The loop asks between batches and publishes the
records, so that only the trainer in charge writes evaluations. A version is asked for by number. If the next version is
due before the last one has been measured, training waits, so every version at the interval is measured.
"""

import asyncio
import copy
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import SecretStr

from rollbus.schemas.errors import RollbusError
from rollbus.schemas.read_only import ReadOnlyMapping
from rollbus.schemas.records.steps import Evaluation
from rollbus.trainer.ledger.lineage import Lineage
from rollbus.trainer.ledger.log import Publication, announced_evaluation
from rollbus.trainer.validation.agents import Agent, EvaluationContext, load_agent
from rollbus.trainer.validation.evaluation import build_evaluation
from rollbus.trainer.validation.playing import TRIES, Samples, play_tasks
from rollbus.trainer.validation.settings import ValidationSettings
from rollbus.trainer.validation.validation import ValidationSet, due_versions, make_tasks, read_examples

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Validation:
    """One validation set, and the agent that plays it."""

    agent: Agent
    set: ValidationSet
    settings: ValidationSettings
    api_key: str = "none"
    tries: int = TRIES
    """Of an episode."""


async def measure(
    validation: Validation,
    *,
    model: str,
    version: int,
    run_id: str,
    base_url: str,
    clock_ms: Callable[[], int],
    progress: Callable[[int, int], None] | None = None,
) -> Evaluation:
    """Play the set with one version and return the record."""
    options: Mapping[str, Any] = ReadOnlyMapping(copy.deepcopy(dict(validation.settings.options)), "context.options")
    context = EvaluationContext(f"{model}@{version}", base_url, validation.api_key, options)
    samples: Samples = await play_tasks(
        validation.agent,
        make_tasks(validation.set),
        context,
        limits=validation.settings,
        tries=validation.tries,
        progress=progress,
    )
    return build_evaluation(
        samples,
        model=model,
        policy_version=version,
        name=validation.set.name,
        now_ms=clock_ms(),
        run_id=run_id,
        seed=validation.set.seed,
        set_hash=validation.set.content_hash,
    )


class Validating:
    """The loop calls `measure_due` between batches and `close` at the end."""

    def __init__(
        self,
        validation: Validation,
        *,
        model: str,
        run_id: str,
        base_url: str,
        clock_ms: Callable[[], int],
    ) -> None:
        self._validation = validation
        self._model, self._run_id = model, run_id
        self._base_url, self._clock_ms = base_url, clock_ms
        self._measured: set[int] = set()
        self._given_up: set[int] = set()
        """Not tried again before another evaluation has worked: the endpoint may have failed."""
        self._running: tuple[int, asyncio.Task[Evaluation]] | None = None

    def take_in(self, evaluations: Collection[Evaluation]) -> None:
        """Count what was measured before on this set."""
        ours = self._validation.set.content_hash
        self._measured |= {evaluation.policy_version for evaluation in evaluations if evaluation.set_hash == ours}

    async def measure_due(
        self, lineage: Lineage, *, wait_for: Callable[[Awaitable[Any]], Awaitable[Any]], to_the_end: bool = False
    ) -> Sequence[Publication]:
        """Start what is due, and return the records of what has ended; wait if training must not go on."""
        publications: list[Publication] = []
        while True:
            publications.extend(self._collect_result())
            due = self._list_due(lineage)
            if self._running is None and due:
                self._start_measuring(due[0])
            other_versions = [version for version in due if self._running is None or version != self._running[0]]
            if self._running is None or not (self._validation.settings.wait or to_the_end or other_versions):
                return publications
            await wait_for(asyncio.wait([self._running[1]]))

    def is_due_at(self, steps: int) -> bool:
        """Whether an evaluation runs, or the version after so many completed steps is due."""
        return self._running is not None or steps % self._validation.settings.interval_steps == 0

    async def close(self) -> None:
        """Cancel what is running; it is due again at the next start."""
        if self._running is not None:
            _, task = self._running
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            self._running = None

    def _list_due(self, lineage: Lineage) -> list[int]:
        settled = self._measured | self._given_up
        interval = self._validation.settings.interval_steps
        return [version for version in due_versions(lineage, interval, settled) if version not in settled]

    def _start_measuring(self, version: int) -> None:
        logger.info(
            "evaluation %s of %s@%d begins: %d episodes",
            *(self._validation.set.name, self._model, version, self._validation.set.episodes),
        )
        measuring = measure(
            self._validation,
            model=self._model,
            version=version,
            run_id=self._run_id,
            base_url=self._base_url,
            clock_ms=self._clock_ms,
        )
        self._running = version, asyncio.create_task(measuring)

    def _collect_result(self) -> Sequence[Publication]:
        if self._running is None or not self._running[1].done():
            return ()
        version, task = self._running
        self._running = None
        try:
            evaluation = task.result()
        except RollbusError as error:  # training does not depend on being measured
            self._given_up.add(version)
            logger.warning("version %d is not measured: %s", version, error)
            return ()
        self._measured.add(version)
        self._given_up.clear()
        metrics_text = ", ".join(f"{name} {value:.4g}" for name, value in evaluation.metrics.items())
        logger.info("evaluation %s of %s@%d: %s", evaluation.name, self._model, version, metrics_text)
        return announced_evaluation(evaluation)


def load_validation(settings: ValidationSettings | None, token: SecretStr | None) -> Validation | None:
    """Return the validation of a trainer, if it has one; ConfigurationError if agent or dataset cannot be used.

    `token` is of the endpoint that serves the model, for settings that name no key of their own.
    """
    if settings is None:
        return None
    examples = read_examples(settings.dataset) if settings.dataset else ()
    key = token if settings.api_key is None else settings.api_key
    return Validation(
        agent=load_agent(settings.agent, folder=Path.cwd()),
        set=ValidationSet(settings.name, settings.episodes or len(examples), settings.seed, examples),
        settings=settings,
        api_key=key.get_secret_value() if key else "none",
    )
