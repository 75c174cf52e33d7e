"""A telemetry exporter of the toolkit: each request of a workflow is an episode, whatever the workflow is made of.

    general: telemetry: tracing: {rollbus: {_type: rollbus}}

The toolkit copies the exporter for each request, and calls the copy where the steps happen. So the copy makes its
episode the current one there, and the hooks of `rollbus.instrument` record models and tools into it.
"""

import asyncio
import logging
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from contextvars import Token
from pathlib import Path

from nat.builder.builder import Builder
from nat.data_models.intermediate_step import IntermediateStep, IntermediateStepType
from nat.observability.exporter.base_exporter import BaseExporter

from rollbus.nemo.components import WorkflowTelemetryConfig
from rollbus.nemo.llms import active_function
from rollbus.nemo.production.eval_scores import EVALUATION, EvaluationScores
from rollbus.nemo.production.request_labels import identity_header_of, labels_of_request
from rollbus.nemo.runs.run_recording import FLUSH_S
from rollbus.producers import Episode, Recorder, init
from rollbus.producers.episode import context
from rollbus.producers.episode.scope import stop_reason_of
from rollbus.producers.integrations.instrument import instrument
from rollbus.settings import Settings
from rollbus.settings_file import load_settings

logger = logging.getLogger(__name__)
LOCAL_FILE = Path("rollbus.yaml")
"""Read where no settings file is named, as by the commands."""


@asynccontextmanager
async def telemetry_exporter(config: WorkflowTelemetryConfig, builder: Builder) -> AsyncIterator[BaseExporter]:
    """Yield the exporter of a configuration; raises ConfigurationError where its settings are wrong."""
    recorder = recorder_of(config)
    async with recorded_requests(recorder, config.task, identity_header_of(builder)) as exporter:
        yield exporter


def recorder_of(config: WorkflowTelemetryConfig) -> Recorder:
    """Return a recorder to the Kafka of the settings file, else of this machine's stack."""
    settings = production_settings(config.settings_file)
    return init(
        security=settings.kafka,
        bootstrap_servers=config.bootstrap_servers,
        namespace=settings.namespace,
        producer=config.producer,
        sample_rate=config.sample_rate,
        withhold=config.withhold,
        spool_folder=config.spool_folder,
        route=tuple(run.model for run in settings.runs if run.delivery is not None),
    )


def production_settings(settings_file: Path | None) -> Settings:
    """Return the settings of a file, else of `rollbus.yaml` in the folder, else of this machine's stack."""
    path = settings_file or (LOCAL_FILE if LOCAL_FILE.exists() else None)
    return load_settings(Settings, path, os.environ).with_stack_addresses().with_credentials(os.environ)


@asynccontextmanager
async def recorded_requests(
    recorder: Recorder, task: str | None = None, identity_header: str | None = None
) -> AsyncIterator["EpisodeExporter"]:
    """Record the process's models and tools; yield the exporter whose requests they belong to, and deliver at the end.

    `task` is that of the episodes; without it, the workflow's name. `identity_header` is where the server reads the
    user, if it is configured.
    """
    patches, scores = instrument(recorder, function=active_function), EVALUATION.get()
    if scores is not None:
        scores.watch(recorder)
    try:
        yield EpisodeExporter(recorder, task, scores, identity_header)
    finally:
        patches.undo()
        if not await asyncio.to_thread(recorder.close, FLUSH_S):
            logger.warning("rollbus: events of the last requests were not delivered in %s s", FLUSH_S)


class EpisodeExporter(BaseExporter):
    """Opens an episode when a workflow starts, and ends it with the result or error; each request has a copy of it."""

    def __init__(
        self, recorder: Recorder, task: str | None, scores: EvaluationScores | None, identity_header: str | None
    ) -> None:
        super().__init__()
        self._recorder, self._task, self._scores = recorder, task, scores
        self._identity_header = identity_header
        self._episode: Episode | None = None
        self._token: Token[Episode | None] | None = None
        self._workflow_id = self._function_id = ""
        """Ids of the workflow's own step and of its function; the steps of a remote workflow are replayed here too."""
        self._error_around: BaseException | None = None
        """An exception that the caller was handling when it made the request: not an error of the request."""

    def export(self, event: IntermediateStep) -> None:
        """Follow a step of the toolkit; an error of ours does not reach the workflow."""
        self._recorder.guard.call("nat", self._follow, event, default=None)

    def _follow(self, event: IntermediateStep) -> None:
        kind, step_id = event.event_type, event.UUID
        if kind is IntermediateStepType.WORKFLOW_START and self._episode is None:
            self._begin(event)
        elif kind is IntermediateStepType.FUNCTION_START:
            self._function_id = self._function_id or step_id
        elif kind is IntermediateStepType.FUNCTION_END and step_id == self._function_id:
            error = sys.exception()  # the toolkit reports the end of a function in a `finally`
            if error is not None and error is not self._error_around:
                self._end(error)
        elif kind is IntermediateStepType.WORKFLOW_END and step_id == self._workflow_id:
            self._end(None)

    def _begin(self, event: IntermediateStep) -> None:
        self._workflow_id, self._error_around = event.UUID, sys.exception()
        labels = labels_of_request(self._identity_header)
        conversation = labels.get("conversation_id")
        self._episode = self._recorder.start(
            task=self._task or event.name or "", labels=labels, conversation=conversation
        )
        self._token = context.enter(self._episode)
        if run_id := labels.get("workflow_run_id"):
            self._episode.alias(run_id)
            if self._scores is not None:
                self._scores.begin(run_id, self._episode)

    def _end(self, error: BaseException | None, text: str | None = None) -> None:
        episode, token = self._episode, self._token
        if episode is None or token is None:
            return  # not begun, or ended
        self._token = None
        context.leave(token)
        if text is not None:
            episode.end("error", text)
        else:
            episode.end(*stop_reason_of(error))
        episode.is_placeholder = True  # in a context that was not left it hides no episode around it

    async def _cleanup(self) -> None:
        """End an episode that neither a result nor the workflow's own function has ended."""
        self._recorder.guard.call("nat", self._end, None, "the request ended before its workflow", default=None)
        await super()._cleanup()  # type: ignore[no-untyped-call]
