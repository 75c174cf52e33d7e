"""Our model service: it serves the versions of one model, and makes the next one of the sequences of a batch."""

import asyncio
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from torch import nn

from rollbus.schemas.errors import ConfigurationError, RejectedError, UnavailableError
from rollbus.schemas.records.delivery import PolicyDecision
from rollbus.schemas.records.tokens import token_count
from rollbus.trainer.art_server.checkpoints.base_version import check_same_base, check_same_weights, write_base_version
from rollbus.trainer.art_server.checkpoints.checkpoint import Provenance, save_checkpoint
from rollbus.trainer.art_server.checkpoints.journal import VersionStore
from rollbus.trainer.art_server.checkpoints.loading import ModelLoader
from rollbus.trainer.art_server.endpoint.endpoint import ServedModel, build_app, model_door
from rollbus.trainer.art_server.endpoint.hints import HintPlace
from rollbus.trainer.art_server.endpoint.http_server import EndpointServer
from rollbus.trainer.art_server.endpoint.tokenizer import count_known_tokens, load_tokenizer, read_stop_ids
from rollbus.trainer.art_server.learner.agreement import AgreementCheck
from rollbus.trainer.art_server.learner.update import Learner, score_turns
from rollbus.trainer.art_server.model.config import read_config
from rollbus.trainer.art_server.model.memory_limits import loading_failures, memory_failures, memory_refusals
from rollbus.trainer.art_server.model.precision import choose_precision
from rollbus.trainer.art_server.model.threads import choose_threads, count_cores
from rollbus.trainer.art_server.sampler.sampler import Sampler
from rollbus.trainer.backends.distillation import distill_hints, place_hints
from rollbus.trainer.backends.durable.retention import BASE_VERSION
from rollbus.trainer.backends.model_settings import ModelOptions, ServiceSettings
from rollbus.trainer.backends.protocol import TrainRequest, TrainTrajectory
from rollbus.trainer.backends.sequences import (
    TokenSequence,
    find_reward_scale,
    make_art_sequences,
    make_sequences,
    scale_advantages,
    weigh_trajectories,
)
from rollbus.trainer.train_config import Distillation, TrainConfig

DEFAULT_MAX_TOKENS = 4096
"""Of a model that could go further: each row reserves room for so many."""


@dataclass(frozen=True, slots=True)
class StepPlan:
    """What an update is told in addition to its sequences."""

    base_version: int
    config: TrainConfig
    provenance: Provenance
    most_difference: float | None = None
    """Refuse the batch where a source's log-probs differ by more from the model's own; None compares nothing."""
    figures: Mapping[str, float] = field(default_factory=dict)
    """What was measured of the batch before the update, for the step's metrics."""


class TorchService:
    """Serves and trains one model in this process."""

    def __init__(self, settings: ServiceSettings) -> None:
        self.settings, options = settings, settings.options
        self.config = read_config(settings.base_model, max_tokens=options.max_tokens or DEFAULT_MAX_TOKENS)
        rows = f"{options.max_rows} rows of {self.config.max_tokens} tokens"
        with memory_refusals(f"starting {settings.model} with {rows}"):
            self._open(settings, options)

    def _open(self, settings: ServiceSettings, options: ModelOptions) -> None:
        """Allocate the rows, load the weights in training and the newest version, and serve that."""
        self.tokenizer = load_tokenizer(settings.base_model, vocabulary=self.config.vocabulary)
        self.config = replace(self.config, known_tokens=count_known_tokens(self.tokenizer))
        self.loader = ModelLoader(
            self.config,
            precision=choose_precision(options.precision, options.device),
            lora=options.lora,
            base=settings.base_model,
            device=options.device,
        )
        self.store = self.open_store(settings)
        if numbers := self.store.numbers():
            check_same_base(self.store.path(numbers[-1]), settings.base_model)
            if options.lora is not None:
                check_same_weights(self.store.provenance(BASE_VERSION), settings.base_model)
        else:
            write_base_version(self.store.path(BASE_VERSION), self.loader, settings.base_model)
        self._threads = choose_threads(options.device, self.config.width, count_cores())
        self.sampler = Sampler(
            self.config,
            self.tokenizer,
            max_rows=options.max_rows,
            keep_versions=options.keep_versions,
            logprobs_mode=options.logprobs_mode,
            threads=self._threads.sampler,
            device=options.device,
            dtype=self.loader.dtype,
            stop_ids=read_stop_ids(settings.base_model),
        )
        self.learner = Learner(self.config, loader=self.loader)
        self._agreement = AgreementCheck()
        self._loading = threading.Lock()
        self._updates = ThreadPoolExecutor(max_workers=1, thread_name_prefix="update")
        """One thread for all of them: each keeps the buffers of its largest pass, 2.3 GB with SmolLM2."""
        newest = self.store.numbers()[-1]
        self._read_version(newest)
        self.served = ServedModel(settings.model, self.sampler, self.tokenizer, newest, self.load_version)
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

    @property
    def canary(self) -> int | None:
        return self.served.canary

    def use_decision(self, decision: PolicyDecision) -> None:
        """Route episodes by a decision from now on, with its canary in memory; called from a thread of its own."""
        self.served.router.use(decision)
        canary = self.canary
        if canary is not None and self.load_version(canary):
            self.sampler.pin([self.serving, canary])

    def loaded(self) -> tuple[int, ...]:
        """Versions that answer requests now."""
        return self.sampler.loaded()

    def serve(self, version: int) -> None:
        """Answer requests for the bare name with `version`."""
        if not self.load_version(version):
            raise ConfigurationError(f"version {version} of {self.settings.model} is not in {self.store.directory}")
        self.served.serving = version
        self.sampler.pin(pinned_version for pinned_version in (version, self.canary) if pinned_version is not None)

    def load_version(self, version: int) -> bool:
        """Have `version` answer requests; False if there is no such checkpoint.

        UnavailableError if it does not fit the memory. Any thread may call; a version is read once.
        """
        if version in self.sampler.loaded():
            return True
        with self._loading, loading_failures(f"reading version {version} of {self.settings.model}"):
            return version in self.sampler.loaded() or self._read_version(version)

    def _read_version(self, version: int) -> bool:
        if version not in self.store.numbers():
            return False
        try:
            self.sampler.load(version, self.loader.load(self.store.path(version)))
        except ConfigurationError:
            if version not in self.store.numbers():  # retention removed it meanwhile
                return False
            raise
        return True

    def open_endpoint(self) -> None:
        """Answer requests at the address of the settings, from now on."""
        door = model_door(self.settings.api_key, self.settings.host, self.settings.find_principal)
        self._server = EndpointServer(build_app(self.served), door, host=self.settings.host, port=self.settings.port)
        self._server.start()

    async def train(
        self, request: TrainRequest, trajectories: Sequence[TrainTrajectory], provenance: Provenance
    ) -> None:
        """Make the next version of a batch; RejectedError if no advantage is left of what was admitted."""
        config, figures = request.config, dict[str, float]()
        scale = find_reward_scale(trajectories, config)
        if config.advantages == "art":
            sequences = make_art_sequences(trajectories)
        else:
            if config.distill is None:
                trained = scale_advantages(trajectories, scale)
            else:
                trained, figures = await self._distill(request, trajectories, config.distill, scale)
            sequences = make_sequences(trained, weigh_trajectories(trained, config.aggregation))
        if not any(advantage for sequence in sequences for advantage in sequence.advantages):
            raise RejectedError(
                f"batch {request.batch_hash} was admitted, but all its advantages are 0: nothing trains"
            )
        plan = StepPlan(request.base_version, config, provenance, request.most_difference, figures)
        await self.update(sequences, plan)

    async def update(self, sequences: Sequence[TokenSequence], plan: StepPlan) -> dict[str, float]:
        """Make the next version by one optimizer step; it is made to its end if the caller is cancelled."""
        step = asyncio.get_running_loop().run_in_executor(self._updates, self._step, sequences, plan)
        return await asyncio.shield(step)

    async def _distill(
        self, request: TrainRequest, trajectories: Sequence[TrainTrajectory], settings: Distillation, scale: float
    ) -> tuple[tuple[TrainTrajectory, ...], dict[str, float]]:
        """Return a batch with an advantage for each token, by its hints and the weights of its base, and the figures.

        `scale` is that of advantages by rewards.
        """
        began, base = time.monotonic(), request.base_version

        def compute() -> tuple[tuple[TrainTrajectory, ...], dict[str, float]]:
            hinted_turns = place_hints(trajectories, HintPlace(self.tokenizer), max_tokens=self.config.max_tokens)
            with self._learning(f"the log-probs of {len(hinted_turns)} hinted turns under version {base}"):
                self.learner.start_from(base, self.store.path(base))
                logprobs = score_turns(self.learner.model, hinted_turns, device=self.loader.device)
            return distill_hints(trajectories, hinted_turns, logprobs, settings, reward_scale=scale)

        trained, figures = await asyncio.shield(asyncio.get_running_loop().run_in_executor(self._updates, compute))
        return trained, {**figures, "distill_seconds": time.monotonic() - began}

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        if self._server is not None:
            self._server.stop()
        self.sampler.close()
        self._updates.shutdown(wait=False)

    def _step(self, sequences: Sequence[TokenSequence], plan: StepPlan) -> dict[str, float]:
        """Update, load the result, publish it as a checkpoint, then serve it by its number.

        UnavailableError where memory runs out or a version that it needs cannot be read. Then there is no new version.
        The batch is not at fault and must not be dropped.
        """
        tokens = sum(token_count(sequence.token_ids) for sequence in sequences)
        with self._learning(f"the update from version {plan.base_version} over {tokens} tokens"):
            learner, version = self.learner, self.store.next_number()
            learner.start_from(plan.base_version, self.store.path(plan.base_version))
            figures = dict(plan.figures)
            if plan.most_difference is not None:
                turns = [turn for sequence in sequences for turn in sequence.turns]
                model, base, most = learner.model, plan.base_version, plan.most_difference
                agreement = self._agreement.require(
                    turns, base_version=base, most=most, model=model, load=self._load_kept
                )
                figures = agreement | figures
            metrics = figures | learner.step(sequences, plan.config, reference=self._reference(plan))
            networks: list[nn.Module] = []
            save_checkpoint(
                self.store.path(version),
                learner.model,
                self.config,
                base=self.settings.base_model,
                provenance=plan.provenance(version, metrics),
                masters=learner.masters.named,
                optimizer=learner.optimizer,
                lora=self.settings.options.lora,
                before_publishing=lambda partial: networks.append(self.loader.load(partial)),
            )
            learner.version = version
            with self._loading:
                if version not in self.sampler.loaded():  # a request may have had it read meanwhile
                    self.sampler.load(version, networks[0])
            return metrics

    @contextmanager
    def _learning(self, what: str) -> Iterator[None]:
        """Give the learner its threads for a while, and say what failed where memory or a version was missing."""
        torch.set_num_threads(self._threads.learner)
        self.sampler.threads = self._threads.sampler_beside_learner
        try:
            with memory_failures(what):
                yield
        except ConfigurationError as error:
            raise UnavailableError(str(error)) from error
        finally:
            self.sampler.threads = self._threads.sampler

    def _load_kept(self, version: int) -> nn.Module | None:
        """Return a version's network, if its checkpoint is still there."""
        return self.loader.load(self.store.path(version)) if version in self.store.numbers() else None

    def _reference(self, plan: StepPlan) -> Path | None:
        if not plan.config.kl_coefficient:
            return None
        if (version := plan.config.kl_reference_version) not in self.store.numbers():
            raise ConfigurationError(
                f"kl_reference_version {version} has no checkpoint in {self.store.directory}; name one that is there"
            )
        return self.store.path(version)
