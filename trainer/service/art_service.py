"""ART's model service, with our model in the place of vLLM and the GPU trainer.

ART's LocalBackend calls it: `start_openai_server` once, `train` with packed rows on disk, and the rest around them.
`train` takes what ART's configuration cannot carry (base version, batch hash, result) from the `StepPlan` that the
caller left in `plan`; without one, an ART client is driving and ART's own configuration decides.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from rollbus.schemas.errors import ConfigurationError
from rollbus.trainer.backends.model_settings import ModelOptions
from rollbus.trainer.backends.protocol import TrainConfig
from rollbus.trainer.service.checkpoint import save_checkpoint
from rollbus.trainer.service.endpoint import ServedModel, build_app
from rollbus.trainer.service.http_server import EndpointServer
from rollbus.trainer.service.journal import VersionStore
from rollbus.trainer.service.loading import ModelLoader
from rollbus.trainer.service.master_weights import MasterWeights
from rollbus.trainer.service.memory_limits import memory_failures
from rollbus.trainer.service.model import read_config
from rollbus.trainer.service.sampler import Sampler
from rollbus.trainer.service.tokenizer import load_tokenizer
from rollbus.trainer.service.update import Learner

if TYPE_CHECKING:
    from art import dev, types
    from art.preprocessing.pack import DiskPackedTensors

logger = logging.getLogger(__name__)

GRADIENT_STEPS = "data/step_num_gradient_steps"
UNSUPPORTED_OPTIONS = ("kimi_k2_tau", "mask_prob_ratio", "max_negative_advantage_importance_sampling_weight")
"""Of ART's training configuration: they change the loss, so they are refused rather than ignored."""


@dataclass(frozen=True, slots=True)
class ServiceSettings:
    name: str
    base_model: Path
    directory: Path
    """ART's directory of this model; checkpoints stand in `checkpoints/` below it."""
    host: str = "127.0.0.1"
    port: int = 0
    api_key: str | None = None
    options: ModelOptions = field(default_factory=ModelOptions)


Provenance = Callable[[int, Mapping[str, float]], dict[str, Any]]
"""What to write into a checkpoint, from its version and the step's metrics."""


@dataclass(frozen=True, slots=True)
class StepPlan:
    """What one update is for."""

    base_version: int
    config: TrainConfig
    provenance: Provenance


class TorchService:
    """Serves and trains one model in this process."""

    def __init__(self, settings: ServiceSettings) -> None:
        self.settings, options = settings, settings.options
        self.config = read_config(settings.base_model, max_tokens=options.max_tokens)
        self.tokenizer = load_tokenizer(settings.base_model)
        self.loader = ModelLoader(
            self.config,
            precision=options.precision,
            lora=options.lora,
            base=settings.base_model,
            device=options.device,
        )
        self.store = self.open_store(settings)
        self._write_base_version()
        self.sampler = Sampler(
            self.config,
            self.tokenizer,
            max_rows=options.max_rows,
            keep_versions=options.keep_versions,
            logprobs_mode=options.logprobs_mode,
            threads=options.sampler_threads,
            device=options.device,
            dtype=self.loader.dtype,
        )
        self.learner = Learner(self.config, loader=self.loader)
        newest = self.store.numbers()[-1]
        self.served = ServedModel(settings.name, self.sampler, self.tokenizer, newest, self.load_version)
        self.plan: StepPlan | None = None
        self.temperatures: Tensor | None = None
        """Of the next update's packed tokens, in the same places; None where all were sampled at 1."""
        self.remarks: dict[str, Any] = {}
        """For the checkpoint of an update that ART's own configuration decides."""
        self.last_metrics: dict[str, float] = {}
        self._server: EndpointServer | None = None
        self._closed = False
        self.serve(newest)

    @staticmethod
    def open_store(settings: ServiceSettings) -> VersionStore:
        """The checkpoints of this model, for recovery before the service reads them."""
        store = VersionStore(settings.directory / "checkpoints")
        store.directory.mkdir(parents=True, exist_ok=True)
        return store

    @property
    def base_url(self) -> str | None:
        return f"http://{self._server.host}:{self._server.port}/v1" if self._server else None

    @property
    def serving(self) -> int:
        return self.served.serving

    def loaded(self) -> tuple[int, ...]:
        """Versions that answer requests now."""
        return self.sampler.loaded()

    def serve(self, version: int) -> None:
        """Answer requests for the bare name with `version`."""
        if not self.load_version(version):
            raise ConfigurationError(f"version {version} of {self.settings.name} is not in {self.store.directory}")
        self.sampler.pin([version])
        self.served.serving = version

    def load_version(self, version: int) -> bool:
        """Have `version` answer requests; False if there is no such checkpoint."""
        if version in self.sampler.loaded():
            return True
        if version not in self.store.numbers():
            return False
        self.sampler.load(version, self.loader.load(self.store.path(version)))
        return True

    # What ART's LocalBackend calls.

    async def start_openai_server(self, config: dev.OpenAIServerConfig | None) -> tuple[str, int]:
        """Start the endpoint; a second call returns the running one's address."""
        if self._server is None:
            app = build_app(self.served, api_key=self.settings.api_key)
            self._server = EndpointServer(app, host=self.settings.host, port=self.settings.port)
            await asyncio.to_thread(self._server.start)
        return self._server.host, self._server.port

    async def vllm_engine_is_sleeping(self) -> bool:
        return False

    async def acquire_exact_adapter(self, step: int, checkpoint_path: str) -> str:
        if not await asyncio.to_thread(self.load_version, step):
            raise ConfigurationError(f"version {step} of {self.settings.name} has no checkpoint at {checkpoint_path}")
        return f"{self.settings.name}@{step}"

    async def release_exact_adapter(self, step: int) -> None:
        """Nothing to do: a version stays loaded while requests use it."""

    async def register_lora_for_step(self, step: int, checkpoint_dir: str) -> None:
        """ART copied a checkpoint to a new number because there was nothing to train."""
        await asyncio.to_thread(self.load_version, step)

    async def resolve_global_grad_accumulation_sequences(self, config: types.TrainConfig) -> int:
        """For ART's estimates only: every call is one optimizer step, and says so."""
        return 1

    async def train(
        self,
        disk_packed_tensors: DiskPackedTensors,
        config: types.TrainConfig,
        _config: dev.TrainConfig,
        verbose: bool = False,
    ) -> AsyncIterator[dict[str, float]]:
        """One optimizer step over all rows; the new version is loaded before its directory exists."""
        from art.preprocessing.pack import packed_tensors_from_dir

        packed = {
            name: value.clone()  # the files are mapped and reused by the next call
            for name, value in packed_tensors_from_dir(**disk_packed_tensors).items()
            if isinstance(value, torch.Tensor)
        }
        if self.temperatures is not None:
            packed["temperatures"] = self.temperatures
        plan = self.plan or self._arts_plan(config, _config)
        metrics = await asyncio.shield(asyncio.ensure_future(asyncio.to_thread(self._step, packed, plan)))
        self.last_metrics = metrics
        yield {
            "loss/train": metrics["loss"],
            "loss/grad_norm": metrics["grad_norm"],
            "loss/entropy": metrics["entropy"],
            "loss/learning_rate": metrics["learning_rate"],
            GRADIENT_STEPS: 1.0,
        }

    async def aclose(self) -> None:
        await asyncio.to_thread(self.close)

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        if self._server is not None:
            self._server.stop()
        self.sampler.close()

    def _step(self, packed: Mapping[str, Tensor], plan: StepPlan) -> dict[str, float]:
        """Update, load the result for serving, then publish it as a checkpoint."""
        torch.set_num_threads(self.settings.options.trainer_threads)
        learner, version = self.learner, self.store.next_number()
        learner.start_from(plan.base_version, self.store.path(plan.base_version))
        reference = self.store.path(plan.config.kl_reference_version) if plan.config.kl_coefficient else None
        with memory_failures(f"the update from version {plan.base_version} over {packed['tokens'].numel()} tokens"):
            metrics = learner.step(packed, plan.config, reference=reference)
        save_checkpoint(
            self.store.path(version),
            learner.model,
            self.config,
            base=self.settings.base_model,
            provenance=plan.provenance(version, metrics),
            masters=learner.masters.named,
            optimizer=learner.optimizer,
            lora=self.settings.options.lora,
            before_publishing=lambda partial: self._load_from(version, partial),
        )
        learner.version = version
        return metrics

    def _load_from(self, version: int, directory: Path) -> None:
        self.sampler.load(version, self.loader.load(directory))

    def _arts_plan(self, config: types.TrainConfig, dev_config: dev.TrainConfig) -> StepPlan:
        base, remarks = self.store.numbers()[-1], dict(self.remarks)
        ppo = bool(dev_config.get("ppo", False))
        low = dev_config.get("epsilon") or (0.2 if ppo else 1.0)
        high = dev_config.get("epsilon_high") or (low if ppo else 4.0)
        level = dev_config.get("importance_sampling_level", "token")
        ignored = sorted(name for name in UNSUPPORTED_OPTIONS if dev_config.get(name))
        if ignored or level not in ("token", "sequence"):
            raise ConfigurationError(
                f"this server does not know ART's {', '.join(ignored) or f'importance_sampling_level {level!r}'}; "
                "leave it out, and see docs/trainer.md for what there is instead"
            )
        settings = TrainConfig(
            learning_rate=config.learning_rate,
            loss="ppo" if ppo else "cispo",
            advantages="art",
            ratio_level="sequence" if level == "sequence" else "token",
            ratio_min=1 - low,
            ratio_max=1 + high,
            epsilon=low,
            epsilon_high=high,
            dual_clip=None,
            kl_coefficient=config.kl_penalty_coef,
        )
        return StepPlan(base, settings, lambda version, metrics: {"version": version, "parent": base, **remarks})

    def _write_base_version(self) -> None:
        """Version 0 is the base model, written as a checkpoint once."""
        if self.store.numbers():
            self._check_base_model()
            return
        model = self.loader.fresh()
        masters = MasterWeights(model)
        if self.settings.options.lora is None:
            masters.load(self.loader.trained_weights(self.settings.base_model))
        save_checkpoint(
            self.store.path(0),
            model,
            self.config,
            base=self.settings.base_model,
            masters=masters.named,
            lora=self.settings.options.lora,
            provenance={"version": 0, "parent": None, "base_model": self.settings.base_model.name},
        )

    def _check_base_model(self) -> None:
        """ConfigurationError where the checkpoints are of another base model: their tokens would mean other texts."""
        newest = self.store.path(self.store.numbers()[-1])
        for name in ("config.json", "tokenizer.json"):
            if (newest / name).read_bytes() != (self.settings.base_model / name).read_bytes():
                raise ConfigurationError(
                    f"{name} of base model {self.settings.base_model} is not that of checkpoint {newest}; put the base "
                    "model back that this run began with, or give `art_server: directory:` another folder"
                )
