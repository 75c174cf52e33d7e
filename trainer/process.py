"""The trainer as a process: settings → log, backend and loop, until a signal, an error or another trainer ends it.

SIGTERM and SIGINT end it between batches. While an art-server works they end it at once: the server goes on, and the
next start finds the result in its journal. A backend inside this process is waited for.
"""

import asyncio
import logging
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager

from rollbus.runtime.health.heart import Heart, beating
from rollbus.schemas.errors import ConfigurationError, RollbusError
from rollbus.trainer.backends.model_settings import ServiceSettings
from rollbus.trainer.backends.protocol import Backend
from rollbus.trainer.ledger.log import TrainerLog
from rollbus.trainer.ledger.log_kafka import KafkaTrainerLog
from rollbus.trainer.loop.context import StoppedWaitingError
from rollbus.trainer.loop.loop import Trainer
from rollbus.trainer.loop.waiting import Stop
from rollbus.trainer.settings import (
    ArtLocalBackend,
    ArtServerBackend,
    ServerlessBackendSettings,
    TinkerBackendSettings,
    TrainerSettings,
)
from rollbus.trainer.validation.validating import load_validation

logger = logging.getLogger(__name__)


def run_trainer(settings: TrainerSettings, *, log: TrainerLog | None = None, heart: Heart | None = None) -> None:
    """Train until SIGTERM or SIGINT; raises RunStoppedError, FencedError or DataLossError if it cannot go on.

    Use the log of the settings unless another is given.
    """
    asyncio.run(_run(settings, log or make_log(settings), heart))


def make_log(settings: TrainerSettings) -> KafkaTrainerLog:
    """Return the log of the settings' run, not yet open."""
    return KafkaTrainerLog(
        settings.kafka,
        namespace=settings.namespace,
        run_id=settings.run_id,
        model=settings.model,
        batches_from=settings.from_namespace,
    )


@asynccontextmanager
async def open_backend(settings: TrainerSettings) -> AsyncIterator[Backend]:
    """Make the backend of the settings and close it; import its libraries only if it is chosen."""
    chosen = settings.backend
    backend: Backend
    if isinstance(chosen, ArtServerBackend):
        from rollbus.trainer.backends.art_client import ArtClient

        token = chosen.token.get_secret_value() if chosen.token else None
        backend = ArtClient(chosen.url, token=token)
    elif isinstance(chosen, ArtLocalBackend):
        backend = await _start_art_local(settings.model, chosen)
    elif isinstance(chosen, TinkerBackendSettings):
        backend = await _start_tinker(settings, chosen)
    elif isinstance(chosen, ServerlessBackendSettings):
        backend = await _start_serverless(settings, chosen)
    else:
        from rollbus.trainer.backends.memory import MemoryBackend

        backend = MemoryBackend(model=settings.model, folder=chosen.folder, step_s=chosen.step_s)
    try:
        yield backend
    finally:
        await backend.close()


async def _run(settings: TrainerSettings, log: TrainerLog, heart: Heart | None) -> None:
    """Stand by first: a backend that is opened while another trainer works would be out of date."""
    validation, stop = load_validation(settings), Stop(asyncio.sleep)
    try:
        with _signals(stop.ask):
            await stop.unless_asked(log.stand_by())
        async with open_backend(settings) as backend:
            trainer = Trainer(log, backend, settings, validation=validation)
            with _signals(trainer.stop):
                async with beating(heart, trainer.report):
                    await trainer.run(until_idle=settings.from_namespace is not None)
    except StoppedWaitingError:
        logger.info("trainer of run %s ends while it stood by", settings.run_id)
    except RollbusError as error:
        logger.error("trainer of run %s ends: %s", settings.run_id, error)
        raise
    finally:
        await log.leave()


@contextmanager
def _signals(stop: Callable[[], None]) -> Iterator[None]:
    """Call `stop` where a signal asks the process to end."""
    loop, numbers = asyncio.get_running_loop(), (signal.SIGTERM, signal.SIGINT)
    for number in numbers:
        loop.add_signal_handler(number, stop)
    try:
        yield
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)


async def _start_art_local(model: str, chosen: ArtLocalBackend) -> Backend:
    from rollbus.trainer.art_server.control import environment as art_environment

    art_environment.protect()
    from rollbus.trainer.art_server.control.local import ArtLocal

    backend = ArtLocal(local_service_settings(model, chosen))
    await backend.start()
    return backend


async def _start_tinker(settings: TrainerSettings, chosen: TinkerBackendSettings) -> Backend:
    """Raise ConfigurationError for settings of the update that no Tinker service has."""
    from rollbus.trainer.backends.tinker.opening import open_tinker
    from rollbus.trainer.backends.tinker.sequences import find_unsupported

    if refused := find_unsupported(settings.train):
        raise ConfigurationError(f"`backend: {{type: tinker}}` does not know {', '.join(refused)} of `trainer: train:`")
    return await open_tinker(
        chosen,
        model=settings.model,
        tokenizer=chosen.tokenizer,
        directory=chosen.directory,
        max_tokens=chosen.max_tokens,
        retention=chosen.retention,
    )


async def _start_serverless(settings: TrainerSettings, chosen: ServerlessBackendSettings) -> Backend:
    """Raise ConfigurationError for settings of the update that W&B's service does not have, and without a key."""
    from rollbus.trainer.backends.serverless.batches import find_unsupported_settings
    from rollbus.trainer.backends.serverless.following import WaitLimits
    from rollbus.trainer.backends.serverless.opening import find_api_key, open_serverless

    if refused := find_unsupported_settings(settings.train):
        raise ConfigurationError(
            f"`backend: {{type: art-serverless}}` does not know {', '.join(refused)} of `trainer: train:`"
        )
    api_key = find_api_key(chosen)
    from rollbus.trainer.art_server.control import environment as art_environment

    art_environment.protect()
    return await open_serverless(
        chosen,
        api_key,
        model=settings.model,
        directory=chosen.directory,
        max_tokens=chosen.max_tokens,
        retention=chosen.retention,
        accept_step=chosen.accept_step,
        waiting=WaitLimits(settle_s=chosen.settle_s),
    )


def local_service_settings(model: str, chosen: ArtLocalBackend) -> ServiceSettings:
    """Return the settings of the model service in the trainer's own process."""
    return ServiceSettings(
        model=model,
        base_model=chosen.base_model,
        directory=chosen.directory,
        port=chosen.model_port,
        api_key=chosen.token.get_secret_value() if chosen.token else None,
        retention=chosen.retention,
        options=chosen,
    )
