"""Logs of the replay tests: one without records, one that a test may change, and one that many tests only read."""

import asyncio
import uuid
from pathlib import Path

import pytest

from rollbus.settings import Settings
from tests.services.replay.live import settings_of, write_settings
from tests.services.replay.log import fill, new_topics


@pytest.fixture
async def new_log(kafka: str, namespace: str, tmp_path: Path) -> Settings:
    """A log without records."""
    return await new_topics(settings_of(write_settings(tmp_path, kafka, namespace)))


@pytest.fixture
async def settings(new_log: Settings) -> Settings:
    """A log of ten ticks with the events of six episodes between each two; no worker has seen it."""
    await fill(new_log)
    return new_log


@pytest.fixture(scope="module")
def shared_log(kafka: str, tmp_path_factory: pytest.TempPathFactory) -> Settings:
    """The same log, for the tests of a module that write nothing into it."""
    log_settings = settings_of(write_settings(tmp_path_factory.mktemp("log"), kafka, f"t-{uuid.uuid4().hex[:6]}."))

    async def fill_new() -> None:
        await fill(await new_topics(log_settings))

    asyncio.run(fill_new())
    return log_settings
