"""Settings → a backend, through the trainer's own door."""

from pathlib import Path
from typing import Any

import pytest

from rollbus.schemas.errors import ConfigurationError
from rollbus.trainer.process import open_backend
from rollbus.trainer.settings import TrainerSettings
from tests.contracts.backend import MODEL, submit_and_wait
from tests.trainer.backends.serverless.scene import ServerlessScene, make_art_request


def make_settings(folder: Path, url: str, *, train: dict[str, Any] | None = None, **changes: Any) -> TrainerSettings:
    """Return a trainer's settings with this backend."""
    place = {"project": "tickets", "name": "agent-1", "base_model": "OpenPipe/Qwen3-14B-Instruct"}
    backend = {"type": "art-serverless", "url": url, **place, **changes}
    return TrainerSettings.model_validate(
        {
            "model": MODEL,
            "backend": backend,
            "art_server": {"directory": folder},
            "train": {"advantages": "art"} if train is None else train,
        }
    )


async def test_the_api_key_of_the_environment_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """ART itself would begin a run at W&B with it."""
    monkeypatch.setenv("WANDB_API_KEY", "key")
    async with ServerlessScene(tmp_path).serve() as scene, open_backend(make_settings(tmp_path, scene.url)) as backend:
        assert (await backend.capabilities()).backend == "art-serverless"
        assert await submit_and_wait(backend, make_art_request(0)) == 1


async def test_without_a_key_a_start_says_where_it_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    with pytest.raises(ConfigurationError, match="set WANDB_API_KEY"):
        async with open_backend(make_settings(tmp_path, "http://127.0.0.1:9/v1")):
            pass


async def test_unsupported_update_settings_are_refused_at_the_start(tmp_path: Path) -> None:
    settings = make_settings(tmp_path, "http://127.0.0.1:9/v1", train={"loss": "dppo"}, api_key="key")
    with pytest.raises(ConfigurationError, match=r"does not know loss: dppo, advantages: given"):
        async with open_backend(settings):
            pass
