"""The client of a released ART server that trains over HTTP: `art run` of 0.5.7, the last with a client of its own.

Such a server knows no batch hash, keeps no journal, computes advantages itself and serves its newest weights only. So
the journal stands here: a batch is `started` before it is sent and `done` with its step. What was started and has no
outcome is found by the server's step number, which nobody else may move.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import httpx

from rollbus.schemas.errors import DataLossError, RejectedError, RollbusError, UnavailableError
from rollbus.trainer.appending import append_line, whole_lines
from rollbus.trainer.backends.art_released_rows import Render, admit_rendered, configs_to_json, groups_to_json
from rollbus.trainer.backends.guards import Admitted, Limits
from rollbus.trainer.backends.protocol import (
    Capabilities,
    JobStatus,
    TrainRequest,
    TrainResult,
    Version,
    Versions,
)
from rollbus.trainer.backends.wire import result_from_json

ANSWER_TIMEOUT_S = 60.0
START_TIMEOUT_S = 600.0
"""Of the call that starts vLLM."""
JOURNAL_NAME = "journal.jsonl"


class ReleasedArtClient:
    """Fulfils `Backend` with a server of ART's."""

    def __init__(
        self,
        url: str,
        *,
        model: str,
        base_model: str,
        project: str,
        folder: Path,
        limits: Limits,
        render: Render,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self._url, self._model, self._limits, self._render = url, model, limits, render
        self._body = {
            "name": model,
            "project": project,
            "trainable": True,
            "base_model": base_model,
            "config": None,
        }
        self._path = folder / JOURNAL_NAME
        self._http = httpx.AsyncClient(base_url=url, timeout=ANSWER_TIMEOUT_S, transport=transport)
        self._started: dict[str, tuple[int, Admitted | None]] = {}
        self._untrained: dict[str, int] = {}
        """Batches of which the server trained nothing, and the step that it counted for them."""
        self._results: dict[str, TrainResult] = {}
        self._errors: dict[str, RollbusError] = {}
        self._updates: dict[str, asyncio.Task[None]] = {}
        self._inference_url: str | None = None
        folder.mkdir(parents=True, exist_ok=True)
        for number, line in enumerate(whole_lines(self._path), start=1):
            try:
                self._apply(json.loads(line))
            except ValueError as error:
                raise DataLossError(
                    f"journal {self._path} is damaged at line {number}: {error}; restore it from a backup"
                ) from error

    async def start(self) -> None:
        """Register the model and have it served; idempotent on the server."""
        await self._ask("/register", self._body)
        asked = {"model": self._body, "config": None}
        self._inference_url, _ = await self._ask("/_prepare_backend_for_training", asked, within_s=START_TIMEOUT_S)

    async def is_healthy(self) -> bool:
        try:
            return (await self._http.get("/healthcheck")).status_code == 200
        except httpx.HTTPError:
            return False

    async def capabilities(self) -> Capabilities:
        return Capabilities(
            "art-released",
            self._model,
            self._limits.max_tokens,
            False,
            self._inference_url,
            rolls_back=False,
            wants_conversations=True,
        )

    async def prepare(self, request: TrainRequest) -> None:
        """Not asked for."""

    async def submit(self, request: TrainRequest) -> str:
        if request.model != self._model:
            raise RejectedError(f"batch {request.batch_hash} is for model {request.model!r}; this is {self._model!r}")
        if await self.journal(request.batch_hash) is not None or request.batch_hash in self._updates:
            return request.batch_hash
        if any(not task.done() for task in self._updates.values()):
            raise UnavailableError("this server is training another batch; try again when it is done")
        head = await self.current_version()
        if request.base_version != head:
            raise RejectedError(
                f"batch {request.batch_hash} is for version {request.base_version}, but the server is at {head}"
            )
        config, own = configs_to_json(request.config)
        self._errors.pop(request.batch_hash, None)
        admitted = admit_rendered(request, self._limits, self._render)
        self._updates[request.batch_hash] = asyncio.create_task(self._update(request, admitted, config, own))
        return request.batch_hash

    async def status(self, batch_hash: str) -> JobStatus:
        if batch_hash in self._results:
            return JobStatus(batch_hash, "completed", 1.0)
        if (error := self._errors.get(batch_hash)) is not None:
            return JobStatus(batch_hash, "failed", 0.0, str(error), error.retriable)
        if batch_hash not in self._updates:
            raise RejectedError(f"batch {batch_hash} was never submitted")
        return JobStatus(batch_hash, "running")

    async def wait(self, batch_hash: str, poll_interval_s: float = 0.5) -> TrainResult:
        await self.status(batch_hash)
        if (task := self._updates.get(batch_hash)) is not None:
            await asyncio.wait([task])
        if batch_hash in self._errors:
            raise self._errors[batch_hash]
        return self._results[batch_hash]

    async def cancel(self, batch_hash: str) -> JobStatus:
        """Nothing is pending here: a batch is sent as it is submitted, and what runs there runs to its end."""
        return await self.status(batch_hash)

    async def journal(self, batch_hash: str) -> TrainResult | None:
        """The result; of a batch that was sent by a process that died, what the server's step number tells."""
        if batch_hash in self._results or batch_hash in self._updates or batch_hash not in self._started:
            return self._results.get(batch_hash)
        if batch_hash in self._untrained:
            raise self._trained_nothing(batch_hash)
        base, admitted = self._started[batch_hash]
        head = await self.current_version()
        if head == base:
            return None
        if head != base + 1 or admitted is None:
            raise DataLossError(
                f"batch {batch_hash} was sent from step {base}, and {self._url} is at {head}; somebody else trains "
                "this model there"
            )
        self._record(_result(batch_hash, base, admitted, {"recovered": 1.0}))
        return self._results[batch_hash]

    async def versions(self) -> Versions:
        head = await self.current_version()
        made = {result.version: result.batch_hash for result in self._results.values()}
        known = (
            Version(step, step - 1 if step else None, made.get(step), _checkpoint(step), loaded=step == head)
            for step in range(head + 1)
        )
        return Versions(head, head, tuple(known))

    async def current_version(self) -> int:
        return int(await self._ask("/_get_step", self._body))

    async def promote(self, version: int, *, rollback: bool = False) -> None:
        head = await self.current_version()
        if version != head:
            raise RejectedError(f"{self._url} serves and trains its newest step, {head}, and cannot go to {version}")

    async def close(self) -> None:
        """Wait for the update in progress; the server goes on for others."""
        if self._updates:
            await asyncio.wait(self._updates.values())
        await self._http.aclose()

    async def _update(self, request: TrainRequest, admitted: Admitted, config: Any, own: Any) -> None:
        try:
            await self._train(request, admitted, config, own)
        except RollbusError as error:
            self._errors[request.batch_hash] = error
        except (httpx.HTTPError, OSError, ValueError) as error:
            self._errors[request.batch_hash] = UnavailableError(f"{self._url} broke off the update: {error!r}")
        finally:
            del self._updates[request.batch_hash]

    async def _train(self, request: TrainRequest, admitted: Admitted, config: Any, own: Any) -> None:
        base = request.base_version
        if not admitted.trajectories:
            self._record(_result(request.batch_hash, base, admitted, {}))
            return
        self._append({"event": "started", "batch_hash": request.batch_hash, "base": base, **_names(admitted)})
        body = {
            "model": self._body,
            "trajectory_groups": groups_to_json(admitted.trajectories),
            "config": config,
            "dev_config": own,
            "verbose": False,
        }
        lines = [line async for line in self._lines(body)]
        if errors := [line["error"] for line in lines if "error" in line]:
            raise RejectedError(f"{self._url} could not train the batch: {errors[-1]}")
        step = await self.current_version()
        if step == base:
            raise UnavailableError(f"{self._url} ended the update without a new step; look at its log")
        if not sum(_gradient_steps(line) for line in lines):
            self._append({"event": "untrained", "batch_hash": request.batch_hash, "step": step})
            raise self._trained_nothing(request.batch_hash)
        self._record(_result(request.batch_hash, base, admitted, _means(lines)))

    def _trained_nothing(self, batch_hash: str) -> RejectedError:
        return RejectedError(
            f"{self._url} trained nothing of batch {batch_hash} and counted it as step {self._untrained[batch_hash]}; "
            "look at its log, and start the run again under another id"
        )

    async def _lines(self, body: Any) -> AsyncIterator[dict[str, Any]]:
        async with self._http.stream("POST", "/_train_model", json=body, timeout=None) as response:
            if response.status_code >= 400:
                await response.aread()
                raise _refusal(self._url, "/_train_model", response)
            async for line in response.aiter_lines():
                yield json.loads(line)

    async def _ask(self, path: str, body: Any, *, within_s: float = ANSWER_TIMEOUT_S) -> Any:
        try:
            response = await self._http.post(path, json=body, timeout=within_s)
        except httpx.HTTPError as error:
            raise UnavailableError(f"{self._url}{path}: no answer from the ART server ({error!r})") from error
        if response.status_code >= 400:
            raise _refusal(self._url, path, response)
        return response.json()

    def _record(self, result: TrainResult) -> None:
        self._append({"event": "done", "result": {**asdict(result), "trained_ids": list(result.trained_ids)}})

    def _append(self, entry: dict[str, Any]) -> None:
        append_line(self._path, json.dumps(entry).encode())
        self._apply(entry)

    def _apply(self, entry: dict[str, Any]) -> None:
        if entry["event"] == "done":
            result = result_from_json(entry["result"])
            self._results[result.batch_hash] = result
        elif entry["event"] == "untrained":
            self._untrained[entry["batch_hash"]] = entry["step"]
        else:
            admitted = Admitted((), entry["dropped"], trained_ids=tuple(entry["trained"]))
            self._started[entry["batch_hash"]] = (entry["base"], admitted)


def _names(admitted: Admitted) -> dict[str, Any]:
    return {"trained": [one.trajectory_id for one in admitted.trajectories], "dropped": admitted.dropped}


def _result(batch_hash: str, base: int, admitted: Admitted, metrics: dict[str, float]) -> TrainResult:
    ids = admitted.trained_ids or tuple(one.trajectory_id for one in admitted.trajectories)
    if not ids:
        return TrainResult(batch_hash, base, base, "skipped", (), admitted.dropped, {}, "")
    return TrainResult(batch_hash, base, base + 1, "completed", ids, admitted.dropped, metrics, _checkpoint(base + 1))


def _checkpoint(step: int) -> str:
    """As the server names it below its own folder."""
    return f"checkpoints/{step:04d}"


def _gradient_steps(line: dict[str, Any]) -> float:
    return float(line.get("num_gradient_steps", line.get("data/step_num_gradient_steps", 0)))


def _means(lines: list[dict[str, Any]]) -> dict[str, float]:
    names = {name for line in lines for name, value in line.items() if isinstance(value, int | float)}
    return {
        name.removeprefix("loss/"): sum(float(line.get(name, 0)) for line in lines) / len(lines)
        for name in sorted(names)
    }


def _refusal(url: str, path: str, response: httpx.Response) -> RollbusError:
    kind = UnavailableError if response.status_code >= 500 else RejectedError
    return kind(f"{url}{path} answered {response.status_code}: {response.text[:500]}")
