"""A model small enough that a test trains it in a second."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from rollbus.trainer.art_server.endpoint.endpoint import ServedModel, build_app, model_door
from rollbus.trainer.art_server.endpoint.http_server import EndpointServer
from rollbus.trainer.art_server.endpoint.tokenizer import build_tokenizer
from rollbus.trainer.art_server.model.config import ModelConfig
from tests.models import create_model, load_model

TEXTS = ["system user assistant", "choose a letter of the word and say it again"]
SMALL = ModelConfig(layers=2, width=64, heads=4, kv_heads=2, feed_forward=128, max_tokens=128)


@contextmanager
def serving(model: ServedModel, token: str | None = None) -> Iterator[str]:
    """Serve a model until the block ends; yield its address."""
    server = EndpointServer(build_app(model), model_door(token), host="127.0.0.1", port=0)
    server.start()
    try:
        yield f"http://{server.host}:{server.port}"
    finally:
        server.stop()


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _transformers_as_released(monkeypatch: pytest.MonkeyPatch) -> None:
    """Undo what importing ART does to transformers: it takes the arguments of another release, and no model runs."""
    if patches := sys.modules.get("art.transformers.patches"):
        from transformers import masking_utils

        monkeypatch.setattr(masking_utils, "_preprocess_mask_arguments", patches._preprocess_mask_arguments)


@pytest.fixture(scope="session")
def tokenizer() -> Any:
    return build_tokenizer(TEXTS)


@pytest.fixture(scope="session")
def base_model(tmp_path_factory: pytest.TempPathFactory, tokenizer: Any) -> Path:
    """Directory of a base model with random weights."""
    return create_model(tmp_path_factory.mktemp("models") / "base", SMALL, tokenizer, seed=7)


@pytest.fixture
def model(base_model: Path) -> nn.Module:
    return load_model(base_model)[0]
