"""DPO with NeMo Customizer: the toolkit's three parts as they are, against a service that speaks its API.

The service is a stand-in for the entity store, the data store and the customizer: it keeps what their clients send.
"""

import json
import re
from base64 import b64decode
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from nat.builder.builder import Builder
from nat.builder.context import Context
from nat.builder.framework_enum import LLMFrameworkEnum
from nat.builder.function_info import FunctionInfo
from nat.cli.register_workflow import register_function
from nat.data_models.finetuning import TrainingStatusEnum
from nat.data_models.function import FunctionBaseConfig
from nat.data_models.intermediate_step import IntermediateStepPayload, IntermediateStepType, TTCEventData
from nat.plugins.customizer.dpo.trainer_adapter import NeMoCustomizerTrainerAdapter

from rollbus.nemo.finetune import run_epochs
from rollbus.schemas.errors import RunStoppedError
from tests.nemo.world import Endpoint, document, memory_bus, opened, read
from tests.web import QuietHandler, serve

CANDIDATES = ("good", "bad")
NOW = "2026-01-01T00:00:00Z"


class Customizer:
    """What the three services were sent, and how the job goes."""

    def __init__(self, *states: tuple[str, float]) -> None:
        self.files: dict[str, str] = {}
        self.jobs: list[dict[str, Any]] = []
        self.namespaces: list[str] = []
        self._states = iter(states)
        self._state = states[0]

    def answer(self, method: str, path: str, body: bytes, base: str) -> Any:
        match method, path:
            case "POST", "/v1/namespaces":
                self.namespaces.append(json.loads(body)["id"])
                return {"id": self.namespaces[-1]}
            case "POST", "/v1/datastore/namespaces" | "/v1/datasets":
                return {"id": "made"}
            case "POST", "/v1/hf/api/repos/create":
                return {"url": f"{base}/v1/hf/datasets/team/pairs"}
            case "POST", "/v1/hf/api/datasets/team/pairs/preupload/main":
                requested_files = json.loads(body)["files"]
                return {
                    "files": [
                        {"path": file["path"], "uploadMode": "regular", "shouldIgnore": False}
                        for file in requested_files
                    ]
                }
            case "POST", "/v1/hf/api/datasets/team/pairs/commit/main":
                for line in map(json.loads, body.splitlines()):
                    if line["key"] == "file":
                        self.files[line["value"]["path"]] = b64decode(line["value"]["content"]).decode()
                return {"commitUrl": f"{base}/v1/hf/datasets/team/pairs/commit/1", "commitOid": "1"}
            case "POST", "/v1/customization/jobs":
                self.jobs.append(json.loads(body))
                return {"id": "cust-1", "output_model": "team/tuned@cust-1", "status": "created"}
            case "GET", "/v1/customization/jobs/cust-1/status":
                self._state = next(self._states, self._state)
                status, done = self._state
                return {"created_at": NOW, "updated_at": NOW, "status": status, "percentage_done": done}
        return None

    @contextmanager
    def serve_customizer(self) -> Iterator[str]:
        """Serve on loopback; yield the address."""
        service = self

        class Handler(QuietHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.read_body()
                host = f"http://{self.headers['host']}"
                answer = service.answer(self.command, self.path.partition("?")[0], body, host)
                self.answer(answer, 404 if answer is None else 200)

            do_GET = do_POST

        with serve(Handler) as address:
            yield address


class CandidatesConfig(FunctionBaseConfig, name="test_candidates"):
    llm: str


@register_function(config_type=CandidatesConfig, framework_wrappers=[LLMFrameworkEnum.LANGCHAIN])
async def candidates_workflow(config: CandidatesConfig, builder: Builder) -> AsyncIterator[FunctionInfo]:
    """Two candidates for one prompt, reported as the guide's workflow does."""
    llm: Any = await builder.get_llm(config.llm, wrapper_type=LLMFrameworkEnum.LANGCHAIN)

    async def run(question: str) -> str:
        await llm.ainvoke(question)
        manager = Context.get().intermediate_step_manager
        for index, (response, score) in enumerate(zip(CANDIDATES, (1.0, 0.25), strict=True)):
            data = TTCEventData(
                turn_id="turn-1", candidate_index=index, score=score, input=question, output=f"{response} {question}"
            )
            for kind in (IntermediateStepType.TTC_START, IntermediateStepType.TTC_END):
                manager.push_intermediate_step(
                    IntermediateStepPayload(
                        event_type=kind, name="dpo_candidate_move", UUID=f"{question}-{index}", data=data
                    )
                )
        return "2"

    yield FunctionInfo.from_fn(run)


def dpo_document(tmp_path: Path, url: str) -> dict[str, Any]:
    plain = document(tmp_path, examples=3)
    plain["workflow"] = {"_type": "test_candidates", "llm": "policy"}
    plain["trajectory_builders"]["b"] = {"_type": "dpo_traj_builder", "min_score_diff": 0.1}
    plain["trainer_adapters"]["a"] = {
        "_type": "nemo_customizer_trainer_adapter",
        "entity_host": url,
        "datastore_host": url,
        "hf_token": "none",  # an empty one, which is the default, is a header that the client refuses
        "namespace": "team",
        "dataset_name": "pairs",
        "customization_config": "meta/llama-3.2-1b-instruct@v1",
        "poll_interval_seconds": 0.05,
        "hyperparameters": {"training_type": "dpo", "epochs": 2},
    }
    plain["trainers"]["t"] = {"_type": "nemo_customizer_trainer", "num_runs": 2}
    return plain


async def test_pairs_reach_the_customizer_and_its_job_is_the_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = Customizer(("running", 50.0), ("completed", 100.0001))
    intervals: list[float | None] = []
    wait = NeMoCustomizerTrainerAdapter.wait_until_complete

    async def wait_and_note(adapter: Any, ref: Any, poll_interval: float | None = None) -> Any:
        intervals.append(poll_interval)
        return await wait(adapter, ref, poll_interval)

    monkeypatch.setattr(NeMoCustomizerTrainerAdapter, "wait_until_complete", wait_and_note)
    with service.serve_customizer() as url:
        plan = read(tmp_path, dpo_document(tmp_path, url))
        async with opened(plan, memory_bus(plan), Endpoint()) as components:
            statuses = await run_epochs(components)
            metrics = await components.trainer.get_metrics("any")
            assert not components.run.log.view.trajectories, "pairs are not episodes"
    assert [(status.status, status.backend) for status in statuses] == [
        (TrainingStatusEnum.COMPLETED, "nemo-customizer")
    ]
    assert metrics["training_job"]["job_id"] == "cust-1"
    assert intervals == [None], "the adapter waits as its configuration says"
    assert service.namespaces == ["team"]
    (job,) = service.jobs
    assert job["dataset"] == {"name": "pairs", "namespace": "team"}
    assert (job["hyperparameters"]["training_type"], job["hyperparameters"]["epochs"]) == ("dpo", 2)
    assert set(service.files) == {"training/training_file.jsonl", "validation/validation_file.jsonl"}
    pairs = [json.loads(line) for text in service.files.values() for line in text.splitlines()]
    prompts = {pair["prompt"] for pair in pairs}
    assert prompts == {f"question {n}" for n in range(3)}, "the pairs of two runs are the same, and are there once"
    assert all(pair["chosen_response"] == f"good {pair['prompt']}" for pair in pairs)
    assert all(pair["rejected_response"] == f"bad {pair['prompt']}" for pair in pairs)


async def test_a_job_that_the_customizer_fails_ends_the_run_with_its_message(tmp_path: Path) -> None:
    service = Customizer(("failed", 10.0))
    with service.serve_customizer() as url:
        plan = read(tmp_path, dpo_document(tmp_path, url))
        async with opened(plan, memory_bus(plan), Endpoint()) as components:
            with pytest.raises(RunStoppedError, match="failed: Status: failed") as refusal:
                await run_epochs(components)
    assert not re.search(r"\n", str(refusal.value))
