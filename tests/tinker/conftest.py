"""One service for all tests of a run, and the Kafka of the tests of services."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

os.environ["TINKER_API_KEY"] = "tml-none"  # SkyRL takes any key
os.environ.setdefault("TINKER_TELEMETRY", "0")

from tests.environments import run_command
from tests.services.conftest import kafka, namespace
from tests.tinker.skyrl import make_service

__all__ = ["kafka", "namespace"]


@pytest.fixture(scope="session")
def base_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of the base model; its path is its name at the service."""
    folder = tmp_path_factory.mktemp("models") / "tiny"
    run_command([sys.executable, "-m", "tests.tiny_qwen3", folder, 16])
    return folder


@pytest.fixture(scope="session")
def skyrl(tmp_path_factory: pytest.TempPathFactory, base_model: Path) -> Iterator[str]:
    """Address of the service."""
    process, url = make_service(tmp_path_factory.mktemp("skyrl"), base_model)
    process.start()
    try:
        process.wait_until_healthy()
        yield url
    finally:
        process.stop()
