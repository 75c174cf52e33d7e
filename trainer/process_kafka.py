"""The trainer as a process: settings → log, backend and loop, until a signal, an error or another trainer ends it.

SIGTERM and SIGINT end it between batches. While an art-server works they end it at once: the server goes on, and the
next start finds the result in its journal. A backend inside this process is waited for.
"""

import asyncio
import logging
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from aiokafka.errors import ProducerFenced

from rollbus.schemas.errors import RollbusError
from rollbus.trainer.backends.protocol import Backend
from rollbus.trainer.log import TrainerLog
from rollbus.trainer.log_kafka import KafkaLog
from rollbus.trainer.loop import Trainer
from rollbus.trainer.settings import ArtLocalBackend, ArtServerBackend, ReleasedArtBackend, TrainerSettings
from rollbus.trainer.validation_settings import validation_of

logger = logging.getLogger(__name__)


def run_trainer(settings: TrainerSettings, *, log: TrainerLog | None = None) -> None:
    """Train until SIGTERM or SIGINT; raises RunStoppedError, FencedError or DataLossError where it cannot go on.

    The log is that of the settings unless another is given.
    """
    asyncio.run(_run(settings, log or log_of(settings)))


def log_of(settings: TrainerSettings) -> KafkaLog:
    """Return the log of the settings' run, not yet open."""
    return KafkaLog(
        settings.kafka,
        namespace=settings.namespace,
        run_id=settings.run_id,
        model=settings.model,
        batches_from=settings.from_namespace,
    )


@asynccontextmanager
async def backend_of(settings: TrainerSettings) -> AsyncIterator[Backend]:
    """Make the backend and close it; its libraries are imported only where it is chosen."""
    chosen = settings.backend
    backend: Backend
    if isinstance(chosen, ArtServerBackend):
        from rollbus.trainer.backends.art_client import ArtClient

        token = chosen.token.get_secret_value() if chosen.token else None
        backend = ArtClient(chosen.url, token=token)
    elif isinstance(chosen, ArtLocalBackend):
        backend = await _art_local(settings.model, chosen)
    elif isinstance(chosen, ReleasedArtBackend):
        backend = await _art_released(settings.model, chosen)
    else:
        from rollbus.trainer.backends.memory import MemoryBackend

        backend = MemoryBackend(model=settings.model, folder=chosen.folder, step_s=chosen.step_s)
    try:
        yield backend
    finally:
        await backend.close()


async def _run(settings: TrainerSettings, log: TrainerLog) -> None:
    validation = validation_of(settings)
    async with backend_of(settings) as backend:
        trainer = Trainer(log, backend, settings.loop_settings(), validation=validation)
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(_told_already)
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, trainer.stop)
        try:
            await trainer.run(until_idle=settings.from_namespace is not None)
        except RollbusError as error:
            logger.error("trainer of run %s ends: %s", settings.run_id, error)
            raise
        finally:
            await log.close()
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.remove_signal_handler(number)


def _told_already(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Say once that another trainer took over: aiokafka leaves the same error in futures that nobody asks."""
    if not isinstance(context.get("exception"), ProducerFenced):
        loop.default_exception_handler(context)


async def _art_local(model: str, chosen: ArtLocalBackend) -> Backend:
    from rollbus.trainer.backends import art_environment

    art_environment.protect()
    from rollbus.trainer.backends.art_local import ArtLocal, ArtLocalSettings

    backend = ArtLocal(
        ArtLocalSettings(
            model=model,
            base_model=chosen.base_model,
            directory=chosen.directory,
            model_host=chosen.model_host,
            model_port=chosen.model_port,
            options=chosen.options(),
        )
    )
    await backend.start()
    return backend


async def _art_released(model: str, chosen: ReleasedArtBackend) -> Backend:
    from rollbus.trainer.backends.art_released_client import ReleasedArtClient
    from rollbus.trainer.backends.guards import Limits
    from rollbus.trainer.service.model import read_limits
    from rollbus.trainer.service.tokenizer import load_tokenizer, render_chat

    tokenizer = await asyncio.to_thread(load_tokenizer, chosen.tokenizer)
    known = read_limits(chosen.tokenizer, max_tokens=chosen.max_tokens)
    backend = ReleasedArtClient(
        chosen.url,
        model=model,
        base_model=chosen.base_model,
        project=chosen.project,
        folder=chosen.folder,
        limits=Limits(known.max_tokens, known.vocabulary),
        render=lambda messages: render_chat(tokenizer, messages, None),
    )
    await backend.start()
    return backend
