"""One vLLM for all tests of a run, and the model service next to it."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from torch import nn

from benchmarks.gpu.engines import Engine
from benchmarks.gpu.server import Server, serve
from tests.environments import run_command
from tests.models import load_model
from tests.vllm.recording import MODEL
from tests.vllm.server import Vllm, make_vllm

LORA = Engine("LoRA", {"logprobs_mode": "processed", "lora": {"rank": 8, "alpha": 16}}, 1e-3, lambda _: None)


@pytest.fixture(scope="session")
def base_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of the base model, with heads as wide as vLLM's kernels for CPUs want them."""
    folder = tmp_path_factory.mktemp("models") / "tiny"
    run_command([sys.executable, "-m", "tests.tiny_qwen3", folder, 32])
    return folder


@pytest.fixture(scope="session")
def network(base_model: Path) -> nn.Module:
    """The base model as the learner has it."""
    return load_model(base_model)[0]


@pytest.fixture(scope="session")
def vllm(tmp_path_factory: pytest.TempPathFactory, base_model: Path) -> Iterator[Vllm]:
    """It serves version 0."""
    process, server = make_vllm(tmp_path_factory.mktemp("vllm"), base_model, f"{MODEL}@0")
    process.start()
    try:
        process.wait_until_healthy()
        yield server
    finally:
        process.stop()


@pytest.fixture(scope="session")
def art_server(tmp_path_factory: pytest.TempPathFactory, base_model: Path) -> Iterator[Server]:
    """`rollbus art-server run`, which trains adapters of the base model."""
    with serve(LORA, base_model, tmp_path_factory.mktemp("art") / "server", 512) as server:
        server.start()
        yield server
