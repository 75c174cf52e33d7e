"""ART's own model service, as the session sees it: checkpoints, names and updates; ART serves and trains.

Its adapters are checkpoints like any other once `rollbus.json` names their batch. The next start removes one that a
crash left without, so its batch trains again from the version before.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

import art
from art import types
from art.metrics_taxonomy import TRAIN_GRADIENT_STEPS_KEY

from rollbus.schemas.errors import RejectedError, UnavailableError
from rollbus.trainer.art_server.arts_own.engine import internal_config, lora_config, server_config, update_arguments
from rollbus.trainer.art_server.arts_own.packing import GivenBatch, RollbusBackend
from rollbus.trainer.art_server.checkpoints.checkpoint import PROVENANCE, Provenance, read_provenance, write_json
from rollbus.trainer.art_server.checkpoints.journal import VersionStore
from rollbus.trainer.art_server.endpoint.tokenizer import load_tokenizer
from rollbus.trainer.art_server.model.config import SequenceLimits, read_limits
from rollbus.trainer.backends.art_terms.groups import art_groups
from rollbus.trainer.backends.model_settings import PROJECT, ArtEngine, ServiceSettings
from rollbus.trainer.backends.protocol import TrainRequest, TrainTrajectory
from rollbus.trainer.backends.sequences import find_reward_scale, scale_advantages


class ArtOwnService:
    """What this project knows about it; lives on ART's loop."""

    def __init__(self, settings: ServiceSettings, store: VersionStore, engine: ArtEngine) -> None:
        """Take the settings as they are: ART itself makes the model's folder below their directory."""
        self.settings, self.store, self._engine = settings, store, engine
        self.config: SequenceLimits = read_limits(settings.base_model, max_tokens=settings.options.max_tokens)
        self.tokenizer = load_tokenizer(settings.base_model)
        self.base_url: str | None = None
        self.serving = 0
        self.canary: int | None = None
        """ART's own engine gives no version a share."""
        self._model: art.TrainableModel[Any, Any] = art.TrainableModel(
            name=settings.model,
            run_name=settings.model,
            project=PROJECT,
            base_model=str(settings.base_model),
            _internal_config=internal_config(settings.options, engine),
            lora_config=lora_config(settings.options),
        )
        self._backend = RollbusBackend(str(settings.directory), self.tokenizer, packing=engine.packing)

    async def open(self) -> None:
        """Let ART start its service, which writes version 0 the first time; again after it closed itself."""
        settings = self.settings
        where = server_config(settings.host, settings.port, settings.api_key)
        await self._model.register(self._backend, _openai_client_config=where)
        self.base_url = self._model.inference_base_url
        if not read_provenance(self.store.path(0)):
            self.note(0, {"version": 0, "parent": None, "base_model": settings.base_model.name})

    async def train(
        self, request: TrainRequest, trajectories: Sequence[TrainTrajectory], provenance: Provenance
    ) -> None:
        """Call ART's `train` once, note what made the new version, and serve it.

        RejectedError if ART found nothing to train. UnavailableError if its service failed: it was started again.
        """
        trajectories = scale_advantages(trajectories, find_reward_scale(trajectories, request.config))
        given = request.config.advantages == "given"
        self._backend.given = GivenBatch(trajectories, request.config.aggregation) if given else None
        arguments = update_arguments(request.config, self._engine)
        try:
            trained = await self._backend.train(
                self._model, art_groups(trajectories), save_checkpoint=False, **arguments
            )
        except RejectedError:
            raise
        except Exception as error:
            self._backend.forget_service()  # it has closed itself, vLLM included
            await self.open()
            raise UnavailableError(
                f"ART's own service failed ({type(error).__name__}: {error}) and was started again from version "
                f"{request.base_version}; look at its log, and at docs/gpu.md if it ran out of memory"
            ) from error
        finally:
            self._backend.given = None
        if not trained.metrics.get(TRAIN_GRADIENT_STEPS_KEY):
            raise RejectedError(f"ART found nothing to train in batch {request.batch_hash}, although it was admitted")
        self.note(trained.step, provenance(trained.step, trained.metrics))
        self.serve(trained.step)

    async def follow(
        self, request: TrainRequest, config: Mapping[str, Any], dev_config: Any
    ) -> AsyncIterator[dict[str, float]]:
        """Make one update with ART's own configuration; yield the metrics of its optimizer steps."""
        train_values = {name: value for name, value in config.items() if name in types.TrainConfig.model_fields}
        groups = art_groups(request.trajectories)
        async for metrics in self._backend._train_model(
            self._model, groups, types.TrainConfig(**train_values), dev_config
        ):
            yield metrics

    def loaded(self) -> tuple[int, ...]:
        """The newest; ART keeps older adapters only while it needs them."""
        return tuple(self.store.numbers()[-1:])

    def serve(self, version: int) -> None:
        """Serve the newest version; RejectedError for any other, since ART trains and serves only that."""
        newest = self.store.numbers()[-1]
        if version != newest:
            raise RejectedError(
                f"ART's own service trains and serves its newest version, {newest}, and cannot go back to {version}; "
                "stop the server, move the directories above it away, and start it again"
            )
        self.serving = version

    def note(self, version: int, provenance: Mapping[str, Any]) -> None:
        """Write down what made a version: until then it does not count."""
        write_json(self.store.path(version) / PROVENANCE, provenance)

    async def close(self) -> None:
        """Let ART close its own."""
        await self._backend.close()
