"""`rollbus trainer pause|resume` on the real log: an operator's word to a run, which curriculum and trainer honour."""

import asyncio

from rollbus.schemas.control import RunCommand, RunCommandName
from rollbus.schemas.topics import RUN_LOG
from rollbus.trainer.log import Publication
from rollbus.trainer.publishing_kafka import publish_all
from rollbus.trainer.reading_kafka import Pauses, look
from rollbus.trainer.settings import TrainerSettings


def command_run(settings: TrainerSettings, command: RunCommandName, *, command_id: str, comment: str | None) -> None:
    """Write a command into the run's log."""
    record = RunCommand(run_id=settings.run_id, command=command, command_id=command_id, comment=comment)
    publication = Publication(RUN_LOG, settings.run_id, record)
    asyncio.run(publish_all(settings.kafka, settings.namespace, [publication]))


async def paused_by(settings: TrainerSettings) -> RunCommand | None:
    """Return the pause that holds now, if one does."""
    pauses = Pauses(settings.run_id)
    await look(settings.kafka, RUN_LOG.full_name(settings.namespace), pauses)
    return pauses.standing
