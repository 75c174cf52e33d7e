"""Trains through ART with its own service chosen, where a recorder stands in the place of Unsloth and vLLM.

Everything up to there is real: `TrainableModel`, `LocalBackend`, its model and training configurations, its packing.
"""

import asyncio
import json
import sys
import types
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from rollbus.schemas.errors import RollbusError
from rollbus.trainer.backends.model_settings import ArtEngine, LoraConfig, ModelOptions
from rollbus.trainer.train_config import TrainConfig
from tests.services.art.fixtures import made_up_batch

OPTIONS = ModelOptions(
    max_tokens=96,
    max_rows=12,
    logprobs_mode="processed",
    lora=LoraConfig(rank=4, alpha=32.0),
    art=ArtEngine(
        quantisation="8bit",
        gpu_memory_utilization=0.45,
        tensor_parallel_size=2,
        gradient_accumulation=16,
        trainer_gpus=(0,),
        inference_gpus=(1, 2),
    ),
)
CONFIG = TrainConfig(
    learning_rate=3e-6,
    loss="ppo",
    epsilon=0.15,
    epsilon_high=0.3,
    ratio_level="sequence",
    kl_coefficient=0.02,
    kl_reference_version=1,
    importance_correction="token_truncate",
    importance_cap=1.5,
)


CHOICES: dict[str, tuple[ModelOptions, TrainConfig]] = {
    "four bits": (ModelOptions(art=ArtEngine(quantisation="4bit", packing=True)), TrainConfig()),
    "no quantisation": (
        ModelOptions(lora=LoraConfig(rank=2), art=ArtEngine(quantisation="none")),
        TrainConfig(ratio_min=0.25, ratio_max=3.0, kl_coefficient=0.5),
    ),
    "a vLLM of one's own": (ModelOptions(art=ArtEngine(vllm_url="http://gpu-2:8000")), TrainConfig()),
}
"""What the run below leaves out."""


class Recorder:
    """Keeps what ART hands to Unsloth; writes checkpoints as that does, an adapter and nothing else."""

    received: list[dict[str, Any]] = []  # noqa: RUF012 - the case reads it
    fail_next = False

    def __init__(self, model_name: str, base_model: str, config: Any, output_dir: str) -> None:
        self._output = Path(output_dir)
        self.received.append({"model_name": model_name, "base_model": base_model, "config": config})

    async def start_openai_server(self, config: Any) -> tuple[str, int]:
        self.received.append({"server": config["server_args"]})
        if not (self._output / "checkpoints" / "0000").exists():
            self._save(0)
        return "127.0.0.1", 8000

    async def resolve_global_grad_accumulation_sequences(self, config: Any) -> int:
        return int(config.grad_accumulation_sequences or 1)

    async def train(
        self, disk_packed_tensors: Any, config: Any, dev_config: Any, verbose: bool = False
    ) -> AsyncIterator[dict[str, float]]:
        rows = disk_packed_tensors["num_sequences"]
        self.received.append({"train": config.model_dump(), "dev": dict(dev_config), "rows": rows})
        if Recorder.fail_next:
            Recorder.fail_next = False
            raise RuntimeError("CUDA error: device-side assert triggered")
        self._save(1 + max(int(path.name) for path in (self._output / "checkpoints").iterdir() if path.name.isdigit()))
        yield {"loss/train": 0.5, "data/step_num_gradient_steps": 1.0}

    async def vllm_engine_is_sleeping(self) -> bool:
        return False

    async def aclose(self) -> None: ...

    def _save(self, version: int) -> None:
        import torch
        from safetensors.torch import save_file

        folder = self._output / "checkpoints" / f"{version:04d}"
        folder.mkdir(parents=True)
        save_file({"a": torch.zeros(1)}, folder / "adapter_model.safetensors")
        (folder / "adapter_config.json").write_text("{}")


def train(base_model: str, directory: str, findings: str) -> None:
    stand_in = types.ModuleType("art.unsloth.service")
    stand_in.UnslothService = Recorder  # type: ignore[attr-defined]
    sys.modules["art.unsloth.service"] = stand_in
    engine_report = asyncio.run(_train(Path(base_model), Path(directory)))
    Path(findings).write_text(json.dumps(engine_report), encoding="utf-8")


def translations() -> dict[str, Any]:
    """Each of `CHOICES` in ART's terms."""
    from rollbus.trainer.art_server.arts_own.engine import internal_config, lora_config, update_arguments

    return {
        name: {
            "model": internal_config(options, options.art),
            "lora": lora_config(options),
            "update": update_arguments(config, options.art),
        }
        for name, (options, config) in CHOICES.items()
        if options.art is not None
    }


async def _train(base_model: Path, directory: Path) -> dict[str, Any]:
    from rollbus.trainer.art_server.control.local import ArtLocal
    from rollbus.trainer.backends.model_settings import ServiceSettings

    settings = ServiceSettings("agent", base_model, directory, port=8123, api_key="secret", options=OPTIONS)
    backend = ArtLocal(settings)
    await backend.start()
    engine_report: dict[str, Any] = {"capabilities": str(await backend.capabilities()), "refusals": []}
    for number in range(2):
        batch = replace(made_up_batch(f"own-{number}", number), config=CONFIG)
        result = await backend.wait(await backend.submit(batch))
    engine_report["result"] = [result.version, len(result.trained_ids), result.metrics["loss/train"]]
    for refused in ({"loss": "dppo"}, {"entropy_bonus": 0.1}, {"weight_decay": 0.1}):
        batch = replace(made_up_batch(str(refused), 2), config=CONFIG.model_copy(update=refused))
        engine_report["refusals"].append(await _error(backend.wait(await backend.submit(batch))))
    engine_report["refusals"].append(await _error(backend.promote(0)))
    Recorder.fail_next = True
    batch = replace(made_up_batch("own-2", 2), config=CONFIG)
    engine_report["failure"] = await _error(backend.wait(await backend.submit(batch)))
    engine_report["registrations"] = sum("server" in call for call in Recorder.received)
    result = await backend.wait(await backend.submit(batch))
    await backend.close()
    torn = directory / "rollbus" / "models" / "agent" / "checkpoints" / "0003" / "rollbus.json"
    torn.unlink()  # as after a crash between ART's checkpoint and ours of its batch
    restarted = ArtLocal(settings)
    await restarted.start()
    engine_report["after"] = [version.version for version in (await restarted.versions()).known]
    engine_report["recorded"] = [await restarted.journal(f"own-{number}") is not None for number in range(3)]
    await restarted.close()
    engine_report |= {"received": list(Recorder.received), "translations": translations()}
    return engine_report | {"packed_rows": await _rows_when_packed(base_model, directory.with_name("packed"))}


async def _rows_when_packed(base_model: Path, directory: Path) -> int:
    """Rows that an update of 16 short trajectories has where several may share one."""
    from rollbus.trainer.art_server.control.local import ArtLocal
    from rollbus.trainer.backends.model_settings import ServiceSettings

    options = ModelOptions(art=ArtEngine(packing=True))
    backend = ArtLocal(ServiceSettings("agent", base_model, directory, options=options))
    await backend.start()
    await backend.wait(await backend.submit(made_up_batch("packed", 0)))
    await backend.close()
    return int(Recorder.received[-1]["rows"])


async def _error(awaitable: Any) -> str:
    try:
        return str(await awaitable)
    except RollbusError as error:
        return f"{type(error).__name__}: {error}"
