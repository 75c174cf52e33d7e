"""How a trainer starts: what takes long comes before it is a member of the model's trainers."""

import os
import sys
from typing import Any

import pytest

from rollbus.trainer.process import run_trainer
from rollbus.trainer.settings import TrainerSettings
from tests.trainer.log_memory import MemoryBroker, MemoryLog

SERVERLESS = {"type": "art-serverless", "project": "tickets", "name": "agent-1", "base_model": "tiny"}
MODEL = {"base_model": "a", "directory": "a"}
TINKER = MODEL | {"tinker": {"url": "http://127.0.0.1:9", "base_model": "tiny"}}
BACKENDS: dict[str, dict[str, Any]] = {
    "rollbus.trainer.art_server.control.local": {"backend": {"type": "art-local"}, "art_server": MODEL},
    "rollbus.trainer.backends.tinker.sdk": {
        "backend": {"type": "tinker"},
        "art_server": TINKER,
        "train": {"loss": "importance_sampling"},
    },
    "rollbus.trainer.backends.serverless.client": {
        "backend": SERVERLESS,
        "art_server": {"directory": "a"},
        "train": {"advantages": "art"},
    },
}
"""By the module that imports the libraries: the settings that need it."""


class WatchedLog(MemoryLog):
    stood_by = False

    async def stand_by(self) -> None:
        self.stood_by = True


@pytest.mark.parametrize("module", BACKENDS)
def test_a_trainer_imports_the_libraries_of_its_backend_before_it_stands_by(
    module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An import takes longer than the broker waits for a member's heartbeat: then another trainer would begin."""
    monkeypatch.setattr(os, "environ", {**os.environ, "WANDB_API_KEY": "key"})
    monkeypatch.setitem(sys.modules, module, None)  # its import fails
    settings = TrainerSettings.model_validate(BACKENDS[module])
    log = WatchedLog(MemoryBroker(), run_id="main", model="agent")
    with pytest.raises(ImportError, match=module):
        run_trainer(settings, log=log)
    assert not log.stood_by
