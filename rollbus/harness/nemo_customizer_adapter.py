"""Preference pairs → a data set in NeMo's data store and a customization job; its status → a TrainingJobStatus.

The job of a run is saved next to the metrics before it is waited for, so a resumed run finds it and submits no
second one.
"""

import asyncio
import json
import logging
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rollbus.harness.dpo_components import NeMoCustomizerTrainerAdapterConfig
from rollbus.harness.episodes import (
    TERMINAL,
    DPOItem,
    TrainingJobRef,
    TrainingJobStatus,
    TrainingStatusEnum,
    TrajectoryCollection,
)
from rollbus.harness.finetune_config import FinetuneConfig
from rollbus.harness.interfaces import TrainerAdapter
from rollbus.harness.nemo_customizer_api import NeMoServices
from rollbus.harness.outputs import append_line
from rollbus.schemas.errors import RunStoppedError, UnavailableError

logger = logging.getLogger(__name__)

BACKEND = "nemo-customizer"
TRAINING_SHARE = 0.8
STATES = {
    "created": TrainingStatusEnum.PENDING,
    "pending": TrainingStatusEnum.PENDING,
    "running": TrainingStatusEnum.RUNNING,
    "completed": TrainingStatusEnum.COMPLETED,
    "ready": TrainingStatusEnum.COMPLETED,
    "failed": TrainingStatusEnum.FAILED,
    "cancelled": TrainingStatusEnum.CANCELED,
    "canceled": TrainingStatusEnum.CANCELED,
}
"""Any other word is taken for running."""


class NeMoCustomizerTrainerAdapter(TrainerAdapter):
    """Submits one job."""

    def __init__(self, adapter_config: NeMoCustomizerTrainerAdapterConfig) -> None:
        super().__init__(adapter_config)
        self.config = adapter_config
        self._services = NeMoServices(
            adapter_config.entity_host, adapter_config.datastore_host, adapter_config.hf_token
        )

    async def initialize(self, run_config: FinetuneConfig) -> None:
        """Take in the configuration; raises UnavailableError where the customizer does not answer."""
        await super().initialize(run_config)
        if not await self.is_healthy():
            raise UnavailableError(
                f"Failed to connect to NeMo Customizer at {self.config.entity_host}: see `entity_host`, and that "
                f"{self.config.entity_host}/v1/customization/jobs answers"
            )
        if self.config.create_namespace_if_missing:
            await self._services.ensure_namespace(self.config.namespace)

    async def is_healthy(self) -> bool:
        """Ask the customizer."""
        return await self._services.is_healthy()

    async def submit(self, trajectories: TrajectoryCollection) -> TrainingJobRef:
        """Upload the pairs and create the job, unless this run has one already."""
        path = self._job_file(trajectories.run_id)
        if path.exists():
            return TrainingJobRef.model_validate_json(path.read_text(encoding="utf-8"))
        rows = list(self._rows(trajectories))
        if not rows:
            raise RunStoppedError("No DPO items found in trajectories: use a builder that makes pairs")
        files = self._files(rows, trajectories.run_id)
        config = self.config
        message = f"pairs of run {trajectories.run_id}"
        await self._services.upload(config.namespace, config.dataset_name, files, message)
        job = await self._services.create_job(
            {
                "config": config.customization_config,
                "dataset": {"name": config.dataset_name, "namespace": config.namespace},
                "hyperparameters": config.hyperparameters.model_dump(mode="json"),
            }
        )
        told = {"job_id": job["id"], "output_model": job.get("output_model"), "dataset_name": config.dataset_name}
        ref = TrainingJobRef(run_id=trajectories.run_id, backend=BACKEND, metadata={**told, "num_pairs": len(rows)})
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(ref.model_dump_json(), encoding="utf-8")
        logger.info("Submitted %d pairs as customization job %s", len(rows), job["id"])
        return ref

    async def status(self, ref: TrainingJobRef) -> TrainingJobStatus:
        """Ask the customizer; raises if it does not answer, since the job may continue."""
        metadata = ref.metadata or {}
        found = await self._services.job_status(str(metadata["job_id"]))
        word = str(found.get("status", "")).lower()
        state = STATES.get(word, TrainingStatusEnum.RUNNING)
        done = found.get("percentage_done")
        return TrainingJobStatus(
            run_id=ref.run_id,
            backend=ref.backend,
            status=state,
            progress=None if done is None else min(100.0, float(done)),
            message=f"Status: {word}, epochs: {found.get('epochs_completed', 0)}",
            metadata={**metadata, "nemo_status": word},
        )

    async def wait_until_complete(self, ref: TrainingJobRef, poll_interval: float | None = None) -> TrainingJobStatus:
        """Ask until the job has ended, then deploy its model if configured; an unanswered question is asked again."""
        while True:
            try:
                status = await self.status(ref)
            except UnavailableError as error:
                logger.warning("%s", error)
            else:
                if status.status in TERMINAL:
                    break
            await asyncio.sleep(poll_interval or self.config.poll_interval_seconds)
        if status.status is TrainingStatusEnum.COMPLETED and self.config.deploy_on_completion:
            await self._deploy(ref)
        return status

    def log_progress(self, ref: TrainingJobRef, metrics: dict[str, Any], output_dir: str | None = None) -> None:
        """Append a line to trainer_adapter_<run>.jsonl."""
        folder = output_dir or self.run_config.output_dir
        line = {"run_id": ref.run_id, "backend": ref.backend, **(ref.metadata or {}), **metrics}
        append_line(os.path.join(folder, f"trainer_adapter_{ref.run_id}.jsonl"), line)

    async def close(self) -> None:
        """Let go of the connections."""
        await self._services.close()

    async def _deploy(self, ref: TrainingJobRef) -> None:
        config, model = self.config.deployment_config, str((ref.metadata or {}).get("output_model"))
        name = config.deployment_name or model.replace("/", "-").replace("@", "-")
        nim = {"image_name": config.image_name, "image_tag": config.image_tag, "gpu": config.gpu}
        body = {
            "name": name,
            "namespace": self.config.namespace,
            "description": config.description,
            "config": {"model": model, "nim_deployment": nim},
        }
        await self._services.deploy(body)
        await self._until_ready(name)
        logger.info("Deployed %s as %s", model, name)

    async def _until_ready(self, name: str) -> None:
        """Wait for a deployment; raises UnavailableError where it fails or takes too long: `--resume` asks again."""
        began, limit = time.monotonic(), self.config.deployment_timeout_seconds
        told = "no answer"
        while time.monotonic() - began < limit:
            try:
                state, told = await self._services.deployment_state(self.config.namespace, name)
            except UnavailableError as error:
                logger.warning("%s", error)
            else:
                if state == "ready":
                    return
                if state == "failed":
                    raise UnavailableError(f"the deployment {name} failed: {told}; its model is trained and kept")
            await asyncio.sleep(min(self.config.poll_interval_seconds, limit))
        raise UnavailableError(
            f"the deployment {name} is not ready after {limit:g} s: {told}; see `deployment_timeout_seconds`"
        )

    def _rows(self, trajectories: TrajectoryCollection) -> Iterator[dict[str, Any]]:
        for group in trajectories.trajectories:
            for trajectory in group:
                for item in trajectory.episode:
                    if isinstance(item, DPOItem):
                        yield {**item.model_dump(), "prompt": self._prompt(item)}

    def _prompt(self, item: DPOItem) -> Any:
        messages = [{"role": "user", "content": item.prompt}] if isinstance(item.prompt, str) else item.prompt
        plain = [one if isinstance(one, dict) else one.model_dump() for one in messages]
        if self.config.use_full_message_history:
            return plain
        return plain[-1]["content"] if plain else ""

    def _files(self, rows: list[dict[str, Any]], run_id: str) -> dict[str, str]:
        """Return training and validation file; a single pair is in both."""
        cut = max(1, int(len(rows) * TRAINING_SHARE))
        parts = {"training": rows[:cut], "validation": rows[cut:] or rows[-1:]}
        files = {
            f"{name}/{name}_file.jsonl": "".join(json.dumps(row) + "\n" for row in part) for name, part in parts.items()
        }
        if self.config.dataset_output_dir is not None:
            folder = Path(self.config.dataset_output_dir) / run_id
            folder.mkdir(parents=True, exist_ok=True)
            for name, text in files.items():
                (folder / Path(name).name).write_text(text, encoding="utf-8")
        return files

    def _job_file(self, run_id: str) -> Path:
        return Path(self.run_config.output_dir) / f"nemo_customizer_job_{run_id}.json"
