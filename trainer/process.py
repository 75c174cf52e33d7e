"""The trainer as a process: settings → log, backend and loop, until a signal, an error or another trainer ends it.

SIGTERM and SIGINT end it between batches. While an art-server works they end it at once: the server goes on, and the
next start finds the result in its journal. A backend inside this process is waited for.
"""

import asyncio
import logging
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

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
    MemoryBackendSettings,
    ServerlessBackendSettings,
    TinkerBackendSettings,
    TrainerSettings,
    local_model_mistake,
)
from rollbus.trainer.validation.validating import load_validation

logger = logging.getLogger(__name__)

MakeBackend = Callable[[], Awaitable[Backend]]


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
    async with _open_backend(load_backend(settings)) as backend:
        yield backend


def load_backend(settings: TrainerSettings) -> MakeBackend:
    """Import the libraries of the chosen backend, which may take a minute, and return what makes it."""
    chosen = settings.backend
    if isinstance(chosen, ArtServerBackend):
        return _load_art_client(chosen)
    if isinstance(chosen, ArtLocalBackend):
        return _load_art_local(settings)
    if isinstance(chosen, TinkerBackendSettings):
        return _load_tinker(settings)
    if isinstance(chosen, ServerlessBackendSettings):
        return _load_serverless(settings, chosen)
    return _load_memory(settings.model, chosen)


@asynccontextmanager
async def _open_backend(make: MakeBackend) -> AsyncIterator[Backend]:
    backend = await make()
    try:
        yield backend
    finally:
        await backend.close()


async def _run(settings: TrainerSettings, log: TrainerLog, heart: Heart | None) -> None:
    """Import first: it keeps the event loop for longer than the broker waits for a member of the trainers' group.

    Stand by before the backend is opened: one that is opened while another trainer works would be out of date.
    """
    validation, stop = load_validation(settings.validation, settings.endpoint_token), Stop(asyncio.sleep)
    try:
        make_backend = load_backend(settings)
        with _signals(stop.ask):
            await stop.unless_asked(log.stand_by())
        async with _open_backend(make_backend) as backend:
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


def _load_art_client(chosen: ArtServerBackend) -> MakeBackend:
    from rollbus.trainer.backends.art_client import ArtClient

    async def make() -> Backend:
        return ArtClient(chosen.url, token=chosen.token.get_secret_value() if chosen.token else None)

    return make


def _load_memory(model: str, chosen: MemoryBackendSettings) -> MakeBackend:
    from rollbus.trainer.backends.memory import MemoryBackend

    async def make() -> Backend:
        return MemoryBackend(model=model, folder=chosen.folder, step_s=chosen.step_s)

    return make


def _load_art_local(settings: TrainerSettings) -> MakeBackend:
    service = local_service_settings(settings)
    from rollbus.trainer.art_server.control import environment as art_environment

    art_environment.protect()
    from rollbus.trainer.art_server.control.local import ArtLocal

    async def make() -> Backend:
        backend = ArtLocal(service)
        await backend.start()
        return backend

    return make


def _load_tinker(settings: TrainerSettings) -> MakeBackend:
    """Raise ConfigurationError for settings of the update that no Tinker service has."""
    from rollbus.trainer.backends.tinker.sequences import find_unsupported

    if refused := find_unsupported(settings.train):
        raise ConfigurationError(f"`backend: {{type: tinker}}` does not know {', '.join(refused)} of `trainer: train:`")
    service = local_service_settings(settings)
    from rollbus.trainer.backends.tinker.opening import open_tinker

    async def make() -> Backend:
        return await open_tinker(service)

    return make


def _load_serverless(settings: TrainerSettings, chosen: ServerlessBackendSettings) -> MakeBackend:
    """Raise ConfigurationError for settings of the update that W&B's service does not have, and without a key."""
    from rollbus.trainer.backends.serverless.batches import find_unsupported_settings
    from rollbus.trainer.backends.serverless.opening import find_api_key, open_serverless

    if refused := find_unsupported_settings(settings.train):
        raise ConfigurationError(
            f"`backend: {{type: art-serverless}}` does not know {', '.join(refused)} of `trainer: train:`"
        )
    api_key = find_api_key(chosen)
    from rollbus.trainer.art_server.control import environment as art_environment

    art_environment.protect()
    from rollbus.trainer.backends.serverless.client import ServerlessClient

    async def make() -> Backend:
        return await open_serverless(
            ServerlessClient(chosen, api_key),
            model=settings.model,
            directory=model_directory(settings) / "serverless",
            max_tokens=settings.art_server.max_tokens,
            retention=settings.art_server.retention,
            accept_step=chosen.accept_step,
        )

    return make


def local_service_settings(settings: TrainerSettings) -> ServiceSettings:
    """Return the settings of a model that the trainer holds itself; raises ConfigurationError where they lack one."""
    section = settings.art_server
    mistake = local_model_mistake(settings.backend.type, section)
    if mistake is not None or section.base_model is None:
        raise ConfigurationError(mistake or f"backend {settings.backend.type} needs `art_server: base_model:`")
    return ServiceSettings(
        model=settings.model,
        base_model=section.base_model,
        directory=model_directory(settings),
        port=settings.endpoint_port,
        api_key=section.token.get_secret_value() if section.token else None,
        retention=section.retention,
        options=section,
        tinker=section.tinker,
    )


def model_directory(settings: TrainerSettings) -> Path:
    """Return the folder of checkpoints and journals; raises ConfigurationError without one."""
    if settings.art_server.directory is None:
        raise ConfigurationError(f"backend {settings.backend.type} needs `art_server: directory:`")
    return settings.art_server.directory
