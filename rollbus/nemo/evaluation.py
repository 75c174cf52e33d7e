"""The toolkit's evaluation, with every attempt at an example an episode of the recorder.

    example ─▶ workflow, recorded ─▶ the toolkit's steps, with whole log-probs ─▶ the toolkit's evaluators

In training an attempt that crashes is made again, as a new episode; in validation its example counts as failed. A
crash costs its own example only, and an evaluator that raises only its own scores. What an earlier process finished is
not made again.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from contextvars import ContextVar
from copy import copy
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import aiohttp
from jsonpath_ng.parser import parse
from nat.builder.runtime_event_subscriber import pull_intermediate
from nat.data_models.config import Config
from nat.data_models.evaluate_runtime import EvaluationRunConfig, EvaluationRunOutput
from nat.data_models.evaluator import EvalInput, EvalInputItem
from nat.data_models.finetuning import FinetuneConfig
from nat.data_models.user_info import BasicUserInfo, UserInfo
from nat.plugins.eval.data_models.evaluator_io import EvalOutputItem
from nat.plugins.eval.runtime.evaluate import EvaluationRun
from nat.plugins.eval.runtime.remote_workflow import EvaluationRemoteWorkflowHandler
from nat.runtime.session import SessionManager
from pydantic import BaseModel, SecretStr

from rollbus.nemo import troubles
from rollbus.nemo.bus.publish_trajectories import TASK, labels_of
from rollbus.nemo.bus.run_view import ExampleAttempt, group_id_of
from rollbus.nemo.components import WorkflowTelemetryConfig
from rollbus.nemo.llms import with_recorded_models
from rollbus.nemo.runs.recorded_steps import with_recorded
from rollbus.nemo.runs.run import Run
from rollbus.producers import Episode
from rollbus.producers.episode.context import enter, leave
from rollbus.runtime.cancelling import is_being_cancelled
from rollbus.schemas.errors import UnavailableError
from rollbus.schemas.records.events import Event, TurnRecorded

logger = logging.getLogger(__name__)

Work = Callable[[EvalInputItem], Awaitable[tuple[Any, list[Any]]]]
"""An example → the workflow's output and its steps."""
CRASHES = (Exception, SystemExit, asyncio.CancelledError)
"""Of a user's code, which may call sys.exit, or await a task that something cancelled."""
USER = "nat_eval_user"
"""As the toolkit names the user of an evaluation."""


@dataclass(slots=True)
class PlayedAttempt:
    """An attempt whose workflow has returned, or has crashed for the last time; its episode is still open."""

    attempt: ExampleAttempt
    episode: Episode
    turns: list[str]
    """Event ids."""
    error: str | None = None


@dataclass(slots=True)
class Play:
    """One generation of an epoch: every example once."""

    epoch: int
    generation: int
    group_size: int
    max_attempts: int = 1
    keeps_failed: bool = False
    """Whether an attempt that crashed for the last time stays open, to be given its reward."""
    played: dict[str, PlayedAttempt] = field(default_factory=dict)
    """By example id."""
    trajectory_ids: list[str] = field(default_factory=list)
    """Of every attempt, those that crashed and those of an earlier process included."""


class CrashedExample(EvalOutputItem):
    """In place of the score of an example whose workflow crashed."""


PLAY: ContextVar[Play | None] = ContextVar("rollbus_play", default=None)
"""What an evaluation is played for; None in a validation, and in what a user's own builder runs."""


async def evaluate(tuning: FinetuneConfig, run: Run) -> EvaluationRunOutput:
    """Run the dataset through the workflow once, and every evaluator on what came of it."""
    from rollbus.nemo.configuration import load_plan, with_dataset

    run_config = tuning.run_configuration
    assert run_config is not None
    config = run_config.config_file
    if not isinstance(config, Config):
        config = load_plan(Path(str(config)), run_config.override).config
    config = without_exporter(config).model_copy(update={"finetuning": FinetuneConfig()})  # which holds all of it
    return await BusEvaluation(
        EvaluationRunConfig(
            config_file=with_recorded_models(with_dataset(config, run_config.dataset), run.plan.trained),
            result_json_path=run_config.result_json_path,
            endpoint=run_config.endpoint,
            endpoint_timeout=run_config.endpoint_timeout,
        ),
        run,
        PLAY.get(),
    ).run_and_evaluate()


def without_exporter(config: Config) -> Config:
    """Return the configuration without the exporter `rollbus`: a run records its own episodes."""
    telemetry = config.general.telemetry
    tracing = {name: part for name, part in telemetry.tracing.items() if not isinstance(part, WorkflowTelemetryConfig)}
    general = config.general.model_copy(update={"telemetry": telemetry.model_copy(update={"tracing": tracing})})
    return config.model_copy(update={"general": general})


class BusEvaluation(EvaluationRun):
    """One evaluation."""

    def __init__(self, config: EvaluationRunConfig, run: Run, play: Play | None) -> None:
        super().__init__(config=config)
        self._run, self._play = run, play
        self._crashes: dict[Any, str] = {}
        self._left_out: set[Any] = set()
        """Ids of examples that an earlier process finished."""

    async def run_workflow_local(self, session_manager: SessionManager, http_connection: Any = None) -> None:
        """Run the workflow on every example."""
        path = parse(self.config.result_json_path)
        await self._run_items(lambda item: self._run_workflow(item, session_manager, path))

    async def run_workflow_remote(self) -> None:
        """Ask the service for every example; the request's headers carry the episode, so that it records in it."""
        assert self.eval_config is not None
        handler = EvaluationRemoteWorkflowHandler(self.config, self.eval_config.general.max_concurrency)

        async def ask(item: EvalInputItem) -> tuple[Any, list[Any]]:
            timeout = aiohttp.ClientTimeout(total=self.config.endpoint_timeout)
            headers = self._run.recording.recorder.headers()
            async with handler.semaphore, aiohttp.ClientSession(headers=headers, timeout=timeout) as session:
                await handler.run_workflow_remote_single(session, item)
            if item.output_obj is None:
                raise UnavailableError(f"{self.config.endpoint}/generate/full gave no answer; see its log")
            return item.output_obj, item.trajectory

        await self._run_items(ask)

    async def run_evaluators(self, evaluators: dict[str, Any]) -> None:
        """Score what has an output; what crashed has no score and says why."""
        assert self.eval_input is not None
        everything, all_samples = self.eval_input, self.atif_eval_samples
        without = self._crashes.keys() | self._left_out
        self.eval_input = EvalInput(
            eval_input_items=[item for item in everything.eval_input_items if item.id not in without]
        )
        self.atif_eval_samples = [sample for sample in all_samples if sample.item_id not in without]
        if self.eval_input.eval_input_items:
            await super().run_evaluators({name: self._reporting(name, info) for name, info in evaluators.items()})
        self.eval_input, self.atif_eval_samples = everything, all_samples
        crashed = [
            CrashedExample(id=item_id, score=None, reasoning=why, error=why) for item_id, why in self._crashes.items()
        ]
        for _, output in self.evaluation_results:
            output.eval_output_items.extend(crashed)

    def _reporting(self, name: str, evaluator: Any) -> Any:
        """Return an evaluator whose exception is shown and remembered: the toolkit's log line of it is not shown."""

        def with_report(score: Callable[[Any], Awaitable[Any]]) -> Callable[[Any], Awaitable[Any]]:
            async def run(items: Any) -> Any:
                try:
                    return await score(items)
                except CRASHES as error:
                    if is_being_cancelled():
                        raise
                    why = self._run.tally.evaluator_errors[name] = troubles.describe_crash(error)
                    logger.error("evaluator %r raised %s", name, why)  # its place is in the text
                    raise RuntimeError(why) from error  # the toolkit would end with a SystemExit

            return run

        reporting = copy(evaluator)
        for method in ("evaluate_fn", "evaluate_atif_fn"):
            if (score := getattr(evaluator, method, None)) is not None:
                setattr(reporting, method, with_report(score))
        return reporting

    async def _run_items(self, work: Work) -> None:
        assert self.eval_input is not None
        troubles.require_own_ids(self.eval_input.eval_input_items)
        await asyncio.gather(*(self._run_item(item, work) for item in self.eval_input.eval_input_items))

    async def _run_item(self, item: EvalInputItem, work: Work) -> None:
        attempt = self._first_attempt(item)
        tries = self._play.max_attempts if self._play is not None else 1
        for tries_left in reversed(range(0 if item.id in self._left_out else tries)):
            error = await self._try(item, attempt, work, is_last=not tries_left)
            if error is None:
                break
            if not tries_left:
                logger.warning("example %s failed: %s", item.id, error)
                self._crashes[item.id] = error
            attempt = attempt and replace(attempt, number=attempt.number + 1)

    def _first_attempt(self, item: EvalInputItem) -> ExampleAttempt | None:
        """Return the attempt to make now; its example is left out where an earlier process finished it."""
        play = self._play
        if play is None:
            return None
        attempt = ExampleAttempt(self._run.run_id, play.epoch, str(item.id), play.generation)
        attempt, is_finished = self._run.next_attempt(attempt)
        if is_finished:
            self._left_out.add(item.id)
            play.trajectory_ids.append(attempt.trajectory_id)
        return attempt

    async def _try(
        self, item: EvalInputItem, attempt: ExampleAttempt | None, work: Work, *, is_last: bool
    ) -> str | None:
        """Run the workflow once; return why it crashed."""
        recording, play, error = self._run.recording, self._play, None
        episode = self._start_episode(item, attempt)
        token = enter(episode)
        steps: list[Any] = []
        try:
            item.output_obj, steps = await work(item)
        except CRASHES as crash:
            if is_being_cancelled():
                raise
            error = troubles.describe_crash(crash)
        finally:
            leave(token)
        events: list[Event] = await recording.take(episode.id)
        self._run.tally.add(events)
        item.trajectory = with_recorded(self.intermediate_step_adapter.validate_intermediate_steps(steps), events)
        if play is None or attempt is None:
            episode.end()
            return error
        play.trajectory_ids.append(attempt.trajectory_id)
        if error is None or (is_last and play.keeps_failed):
            turns = [event.event_id for event in events if isinstance(event, TurnRecorded)]
            play.played[attempt.example_id] = PlayedAttempt(attempt, episode, turns, error)
        else:
            self._run.crashes[attempt.trajectory_id] = error
            episode.end("error", error)
        return error

    def _start_episode(self, item: EvalInputItem, attempt: ExampleAttempt | None) -> Episode:
        recording, example = self._run.recording, str(item.id)
        episode_id = recording.local_episode_id() if attempt is None else attempt.episode_id
        recording.watch(episode_id)
        grouped: dict[str, Any] = {}
        if attempt is not None and self._play is not None:
            grouped = {
                "group_id": group_id_of(attempt.run_id, attempt.epoch, example),
                "group_size": self._play.group_size,
                "labels": labels_of(attempt),
            }
        return recording.recorder.start(task=TASK, example_id=example, episode_id=episode_id, **grouped)

    async def _run_workflow(self, item: EvalInputItem, sessions: SessionManager, path: Any) -> tuple[Any, list[Any]]:
        """Return the workflow's output and its steps, as the toolkit's own evaluation does."""
        assert self.eval_config is not None
        user = f"{USER}-{uuid4()}" if self.eval_config.general.per_input_user_id else USER
        info = UserInfo(basic_user=BasicUserInfo(username=user, password=SecretStr(USER)))
        async with (
            sessions.session(user_id=info.get_user_id()) as session,
            session.run(item.input_obj) as runner,
        ):
            collected = asyncio.ensure_future(pull_intermediate())
            try:
                output = await runner.result()
                steps = await collected
            finally:
                collected.cancel()
            with suppress(ValueError):  # not everything becomes a text
                output = runner.convert(output, to_type=str)
            if isinstance(output, BaseModel):
                return output.model_dump_json(indent=2), steps
            matches = path.find(output)
            if not matches:
                raise ValueError(f"the workflow's output has no {self.config.result_json_path}; see --result_json_path")
            return matches[0].value, steps
