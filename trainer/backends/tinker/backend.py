"""A batch → exactly one version, over a service that trains whatever it is sent and knows no batch.

The order: forward and backward → log-probs are held against the recorded ones → optimizer step → the journal says under
which name the state will be saved, with the result → the state is saved under the batch's hash → the journal says that
this is the version. The run goes on from there with the next batch.

Whatever dies in between, the next attempt asks the service whether that state is there. If it is, it is the version;
if not, the whole step is made again, in a new run from the saved state of the base. So a run is trained on only if all
of its steps are versions. A step that was made in vain moved weights that are not used.
"""

import asyncio
import logging
import time
from dataclasses import dataclass, replace
from pathlib import Path

from rollbus.schemas.errors import ConfigurationError, RejectedError, UnavailableError
from rollbus.trainer.backends.admission import Admitted, Limits, admit, make_result, make_skipped_result
from rollbus.trainer.backends.distillation import PlaceHint, distill_hints, place_hints
from rollbus.trainer.backends.durable.folder_lock import FolderLock
from rollbus.trainer.backends.durable.journaled import JournaledBackend
from rollbus.trainer.backends.durable.retention import BASE_VERSION
from rollbus.trainer.backends.model_settings import Retention
from rollbus.trainer.backends.outcomes import name_service_metrics
from rollbus.trainer.backends.protocol import (
    Capabilities,
    TrainRequest,
    TrainResult,
    TrainTrajectory,
    Versions,
    WeightsVersion,
)
from rollbus.trainer.backends.sequences import find_reward_scale
from rollbus.trainer.backends.tinker.figures import require_agreement, require_finite, step_metrics
from rollbus.trainer.backends.tinker.sequences import make_loss_sequences, make_optimizer
from rollbus.trainer.backends.tinker.service import TinkerService, TrainingRun, VersionSampler
from rollbus.trainer.backends.wire import from_json, to_json

logger = logging.getLogger(__name__)

BASE_NAME = "rollbus-base"


@dataclass(frozen=True, slots=True)
class TrainedModel:
    """What is trained: by the name that requests use, and as the service knows it."""

    name: str
    base_model: str
    lora_rank: int
    vocabulary: int
    """Highest token id plus one."""
    max_tokens: int | None = None
    """Longest sequence; None asks the service."""


@dataclass(frozen=True, slots=True)
class PendingSave:
    """A step that was made, and may have been saved."""

    run_id: str
    name: str
    result: TrainResult
    """Without its checkpoint."""


class TinkerBackend(JournaledBackend):
    """Fulfils `Backend`; call `start` before anything else."""

    def __init__(
        self,
        model: TrainedModel,
        service: TinkerService,
        directory: Path,
        retention: Retention | None = None,
        *,
        place_hint: PlaceHint | None = None,
    ) -> None:
        self.model, self.service, self._retention = model, service, retention or Retention()
        self._place_hint = place_hint
        """None where the chat template is not known: then nothing is distilled."""
        self._pending: PendingSave | None = None
        self._base: dict[str, object] | None = None
        self._open_run: tuple[int, TrainingRun] | None = None
        """The run of the last step, and the version that it is at."""
        self._served_before: int | None = None
        super().__init__(model.name, directory, lock=FolderLock(directory))
        self.max_tokens = model.max_tokens or 0
        """Known after `start`."""

    async def start(self) -> None:
        """Save the base version, the first time; find what an earlier process saved. ConfigurationError if the folder
        is another model's.
        """
        self._require_same_base()
        self.max_tokens = await self._find_max_tokens()
        if self._base is None:
            run = await self.service.begin_run()
            trained = {"base_model": self.model.base_model, "lora_rank": self.model.lora_rank}
            self._record({"kind": "base", "state": await run.save_state(BASE_NAME), **trained})
            self._open_run = BASE_VERSION, run
        if self._pending is not None and (result := await self._find_saved(self._pending)) is not None:
            logger.warning("batch %s had reached version %d; recorded", result.batch_hash, result.version)
            self.record_result(result)

    async def is_healthy(self) -> bool:
        """Ask the service."""
        return await self.service.is_healthy()

    async def capabilities(self) -> Capabilities:
        """Return what a trainer should know."""
        distills = self._place_hint is not None
        return Capabilities(
            "tinker", self.model.name, self.max_tokens, False, None, serves_on_request=True, distills=distills
        )

    async def versions(self) -> Versions:
        """Return every version that is still saved."""
        tree, opened = self.weights_tree, self.opened_versions()
        stored = tuple(
            WeightsVersion(version, parent, batch_hash, tree.checkpoints[version], loaded=version in opened)
            for version, (parent, batch_hash) in sorted(tree.versions.items())
            if version not in tree.retired
        )
        return Versions(tree.head, tree.serving, stored)

    def opened_versions(self) -> frozenset[int]:
        """Return the versions that answer requests now: the serving one, where nothing else is known."""
        return frozenset({self.weights_tree.serving})

    def is_stored(self, version: int) -> bool:
        """Say whether a version can be served and trained on."""
        return version in self.weights_tree.versions and version not in self.weights_tree.retired

    async def open_sampler(self, version: int) -> VersionSampler:
        """Sample from a stored version."""
        return await self.service.open_sampler(self.weights_tree.checkpoints[version])

    async def promote(self, version: int, *, rollback: bool = False) -> None:
        """Serve a version; with `rollback` the next batch starts there, after a running update."""
        if version in self.weights_tree.retired:
            raise RejectedError(f"version {version} of {self.model.name!r} has no checkpoint; retention removed it")
        await super().promote(version)
        if rollback:
            async with self.one_update:
                await super().promote(version, rollback=True)

    async def train(self, request: TrainRequest) -> None:
        """Make one version, or none if there is nothing to train; serve it if asked."""
        began_s = time.monotonic()
        self.check_request(request)
        admitted = admit(request, self._limits(request.base_version), temperatures=False)
        if not admitted.trajectories:
            self.record_result(make_skipped_result(request, admitted))
            return
        result = await self._find_saved_batch(request) or await self._make_step(request, admitted, began_s)
        if request.serve:
            await self.promote(result.version)
        await self._retire(request.config.kl_reference_version)

    async def close(self) -> None:
        """Wait for the update in progress, and let go of service and folder."""
        await super().close()
        if self._open_run is not None:
            await self._open_run[1].close()
        await self.service.close()
        self._release_folder()

    async def _make_step(self, request: TrainRequest, admitted: Admitted, began_s: float) -> TrainResult:
        """Train, save, and record; the run goes on only if all of it was done."""
        run = await self._take_run(request.base_version)
        try:
            metrics = await self._train_run(run, request, admitted)
            metrics["update_seconds"] = time.monotonic() - began_s
            result = make_result(request, admitted, self.next_version(), metrics, "")
            name = f"rollbus-{request.batch_hash}"
            self._record({"kind": "saving", "run_id": run.run_id, "name": name, "result": to_json(result)})
            result = replace(result, checkpoint=await run.save_state(name))
            self.record_result(result)
        except BaseException:
            await run.close()
            raise
        self._open_run = result.version, run
        return result

    async def _take_run(self, base_version: int) -> TrainingRun:
        """Return a run that is at the base: the one of the step before, or a new one from the saved state."""
        open_run, self._open_run = self._open_run, None
        if open_run is not None and open_run[0] == base_version:
            return open_run[1]
        if open_run is not None:
            await open_run[1].close()
        return await self.service.resume_run(self.weights_tree.checkpoints[base_version])

    async def _train_run(self, run: TrainingRun, request: TrainRequest, admitted: Admitted) -> dict[str, float]:
        """Make the one optimizer step; return its metrics."""
        trajectories, figures = await self._distill(request, admitted)
        sequences, loss = make_loss_sequences(trajectories, request.config)
        started_s = time.monotonic()
        output = await run.forward_backward([sequence.sequence for sequence in sequences], loss)
        passed_s = time.monotonic()
        require_finite(sequences, output)
        metrics = step_metrics(sequences, output, loss) | figures
        if request.most_difference is not None:
            metrics |= require_agreement(
                sequences, output, base_version=request.base_version, most=request.most_difference
            )
        moved_from_s = time.monotonic()
        moved = await run.optim_step(make_optimizer(request.config))
        metrics |= name_service_metrics(output.metrics) | name_service_metrics(moved)
        return metrics | {
            "learning_rate": request.config.learning_rate,
            "forward_backward_seconds": passed_s - started_s,
            "optim_step_seconds": time.monotonic() - moved_from_s,
        }

    async def _distill(
        self, request: TrainRequest, admitted: Admitted
    ) -> tuple[tuple[TrainTrajectory, ...], dict[str, float]]:
        """Return the batch with an advantage for each token, if hints are to be learned from, and the figures."""
        config, place_hint = request.config, self._place_hint
        if config.distill is None:
            return admitted.trajectories, {}
        if place_hint is None:
            raise UnavailableError(
                "`distill` needs the chat template, which this backend does not have: let `art_server: tinker:` drive "
                "the service"
            )
        began_s = time.monotonic()
        hinted_turns = place_hints(admitted.trajectories, place_hint, max_tokens=self.max_tokens)
        sampler = await self.open_sampler(request.base_version)
        try:
            scores = await asyncio.gather(
                *(sampler.score([*hinted.prompt, *hinted.completion]) for hinted in hinted_turns)
            )
        finally:
            await sampler.close()
        logprobs = [score[-len(hinted.completion) :] for hinted, score in zip(hinted_turns, scores, strict=True)]
        scale = find_reward_scale(admitted.trajectories, config)
        trained, figures = distill_hints(
            admitted.trajectories, hinted_turns, logprobs, config.distill, reward_scale=scale
        )
        return trained, {**figures, "distill_seconds": time.monotonic() - began_s}

    async def _find_saved_batch(self, request: TrainRequest) -> TrainResult | None:
        """Record and return what an attempt at this batch saved, if it was of the same base."""
        if self._pending is None or self._pending.result.batch_hash != request.batch_hash:
            return None
        if (result := await self._find_saved(self._pending)) is not None:
            self.record_result(result)
        return result

    async def _find_saved(self, pending: PendingSave) -> TrainResult | None:
        if pending.result.base_version != self.weights_tree.head:
            return None
        for path in await self.service.saved_paths(pending.run_id):
            if path.endswith(f"/weights/{pending.name}"):
                return replace(pending.result, version=self.next_version(), checkpoint=path)
        return None

    def _limits(self, base_version: int) -> Limits:
        return Limits(self.max_tokens, self.model.vocabulary, self.weights_tree.lineage(base_version))

    async def _find_max_tokens(self) -> int:
        longest = await self.service.longest_sequence()
        if self.model.max_tokens is None and longest is None:
            raise ConfigurationError(
                f"the service does not say how long a sequence of {self.model.base_model} may be; set `max_tokens`"
            )
        return min(length for length in (self.model.max_tokens, longest) if length is not None)

    def _require_same_base(self) -> None:
        """Raise ConfigurationError if the journal is of another base model or rank: its versions would not fit."""
        trained = self._base or {}
        for name, value in (("base_model", self.model.base_model), ("lora_rank", self.model.lora_rank)):
            if name in trained and trained[name] != value:
                raise ConfigurationError(
                    f"the versions of {self.model.name!r} were trained with {name} {trained[name]!r}, the settings say "
                    f"{value!r}; put it back, or give this model another directory"
                )

    async def _retire(self, reference: int) -> None:
        """Delete what retention does not keep. A failure only costs the service's storage."""
        tree = self.weights_tree
        in_use = {reference, *self.opened_versions()}
        if self._served_before is not None:
            in_use.add(self._served_before)
        for version in tree.find_expendable(self._retention, in_use=in_use):
            self._record({"kind": "retired", "version": version})
            try:
                await self.service.delete(tree.checkpoints[version])
            except Exception as error:
                logger.warning("version %d of %s is not deleted at the service: %s", version, self.model.name, error)

    def _apply(self, entry: dict[str, object]) -> None:
        tree = self.weights_tree
        serving = tree.serving
        match entry:
            case {"kind": "base", "state": str(state)}:
                tree.checkpoints[BASE_VERSION] = state
                self._base = entry
            case {"kind": "saving", "run_id": str(run_id), "name": str(name), "result": dict(body)}:
                self._pending = PendingSave(run_id, name, from_json(TrainResult, body))
            case {"kind": "trained"}:
                self._pending = None
        super()._apply(entry)
        if tree.serving != serving:
            self._served_before = serving
