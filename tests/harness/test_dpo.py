"""Candidates scored at a turn become pairs, pairs become a data set, and a job of NeMo Customizer is made of it."""

import json
from pathlib import Path
from typing import Any

import pytest

from rollbus.harness import Builder, DPOItem, TrainingStatusEnum, score_candidate
from rollbus.harness.configuration import Configuration
from rollbus.harness.dpo_components import NeMoCustomizerTrainerAdapterConfig
from rollbus.harness.dpo_trajectory_builder import DPOTrajectoryBuilder
from rollbus.harness.nemo_customizer_adapter import NeMoCustomizerTrainerAdapter
from rollbus.harness.nemo_customizer_trainer import NeMoCustomizerTrainer
from rollbus.schemas.errors import RejectedError, RunStoppedError, UnavailableError
from tests.harness.nemo_server import NeMoServer, serving
from tests.harness.world import document, read

SCORES = {"a": 0.9, "b": 0.5, "c": 0.1}


async def consider(question: str) -> str:
    """The workflow: three candidates at one turn, one at another."""
    prompt = [{"role": "system", "content": "choose"}, {"role": "user", "content": question}]
    for response, score in SCORES.items():
        score_candidate("turn-1", prompt, response, score)
    score_candidate("turn-2", "last?", "a", 1.0)
    return "a"


def silent(question: str) -> str:
    return "a"


def configured(tmp_path: Path, url: str = "http://127.0.0.1:9", **builder: Any) -> Configuration:
    plain = document(tmp_path, examples=2)
    plain["workflow"] = {"_type": "python", "function": f"{__name__}:consider"}
    plain["eval"]["evaluators"] = {"good": {"_type": "reward_function", "function": "length"}}
    plain["trajectory_builders"] = {"b": {"_type": "dpo_traj_builder", **builder}}
    plain["trainer_adapters"] = {
        "a": {
            "_type": "nemo_customizer_trainer_adapter",
            "entity_host": f"{url}/",
            "datastore_host": url,
            "namespace": "team",
            "dataset_name": "pairs",
            "customization_config": "meta/llama@v1+A100",
            "hyperparameters": {"epochs": 5, "dpo": {"ref_policy_kl_penalty": 0.2}},
            "poll_interval_seconds": 0.01,
            "deploy_on_completion": True,
        }
    }
    plain["trainers"] = {"t": {"_type": "nemo_customizer_trainer", "num_runs": 2}}
    del plain["rollbus"]
    return read(tmp_path, plain)


async def pairs_of(config: Configuration) -> list[tuple[DPOItem, float]]:
    async with Builder(config) as builder:
        made = await builder.get_trajectory_builder("b")
        await made.initialize(config.finetuning)
        await made.start_run("r")
        collection = await made.finalize("r")
    found = []
    for group in collection.trajectories:
        for one in group:
            (item,) = one.episode
            assert isinstance(item, DPOItem)
            found.append((item, one.reward))
    return found


def named(pairs: list[tuple[DPOItem, float]]) -> list[tuple[str, str, float]]:
    return [
        (item.chosen_response, item.rejected_response, round(reward, 3)) for item, reward in pairs[: len(pairs) // 2]
    ]


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        ({}, [("a", "c", 0.8), ("a", "b", 0.4), ("b", "c", 0.4)]),
        ({"exhaustive_pairs": False}, [("a", "c", 0.8)]),
        ({"min_score_diff": 0.5}, [("a", "c", 0.8)]),
        ({"max_pairs_per_turn": 2}, [("a", "c", 0.8), ("a", "b", 0.4)]),
        ({"reward_from_score_diff": False, "exhaustive_pairs": False}, [("a", "c", 0.9)]),
    ],
)
async def test_pairs_follow_the_rules(
    tmp_path: Path, rules: dict[str, Any], expected: list[tuple[str, str, float]]
) -> None:
    pairs = await pairs_of(configured(tmp_path, **rules))
    assert named(pairs) == expected
    assert isinstance(pairs[0][0].prompt, list)
    assert [message.role for message in pairs[0][0].prompt] == ["system", "user"]


async def test_a_workflow_without_candidates_ends_with_what_to_look_at(tmp_path: Path) -> None:
    config = configured(tmp_path, ttc_step_name="other")
    with pytest.raises(RunStoppedError, match="No candidates named 'other' in 2 examples"):
        await pairs_of(config)


async def run(config: Configuration, tmp_path: Path) -> Any:
    async with Builder(config) as builder:
        trainer = await builder.get_trainer("t")
        adapter, made = await builder.get_trainer_adapter("a"), await builder.get_trajectory_builder("b")
        assert isinstance(trainer, NeMoCustomizerTrainer)
        assert isinstance(adapter, NeMoCustomizerTrainerAdapter)
        assert isinstance(made, DPOTrajectoryBuilder)
        await trainer.bind_components(made, adapter)
        try:
            await trainer.initialize(config.finetuning)
            return await trainer.run(1)
        finally:
            await trainer.cleanup()


async def test_a_job_is_submitted_watched_and_deployed(tmp_path: Path) -> None:
    states: list[dict[str, Any]] = [
        {"status": "created"},
        {"status": "running", "percentage_done": 40.0, "http": 503},
        {"status": "running", "percentage_done": 40.0},
        {"status": "completed", "percentage_done": 100.0, "epochs_completed": 5},
    ]
    async with serving(NeMoServer(states=states, known={"team"})) as server:
        (status,) = await run(configured(tmp_path, server.url), tmp_path)
    assert (status.status, status.progress) == (TrainingStatusEnum.COMPLETED, 100.0)
    assert status.message == "Status: completed, epochs: 5"
    assert server.asked == 4
    (job,) = server.jobs
    assert job["config"] == "meta/llama@v1+A100"
    assert job["dataset"] == {"name": "pairs", "namespace": "team"}
    assert job["hyperparameters"] == {
        "training_type": "dpo",
        "finetuning_type": "all_weights",
        "epochs": 5,
        "batch_size": 4,
        "learning_rate": 5e-5,
        "dpo": {
            "ref_policy_kl_penalty": 0.2,
            "preference_loss_weight": 1.0,
            "preference_average_log_probs": False,
            "sft_loss_weight": 0.0,
        },
    }
    training = [json.loads(line) for line in server.files["training/training_file.jsonl"].splitlines()]
    validation = server.files["validation/validation_file.jsonl"].splitlines()
    assert (len(training), len(validation)) == (4, 2), "two passes say the same six pairs"
    assert training[0] == {"prompt": "question 0", "chosen_response": "a", "rejected_response": "c"}
    deployed = dict(server.posted)["/v1/deployment/model-deployments"]
    assert deployed["config"]["model"] == "team/model@1"
    exported = (tmp_path / "output" / "dpo_pairs.jsonl").read_text().splitlines()
    assert len(exported) == 6


async def test_a_deployment_is_waited_for_until_it_is_ready(tmp_path: Path) -> None:
    async with serving(NeMoServer(deployments=["pending", "pending", "ready"])) as server:
        (status,) = await run(configured(tmp_path, server.url), tmp_path)
    assert (status.status, server.asked_deployment) == (TrainingStatusEnum.COMPLETED, 3)


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ("failed", "deployment team-model-1 failed: it is failed"),
        ("pending", "is not ready after 0.05 s: it is pending"),
    ],
)
async def test_a_deployment_that_does_not_come_about_says_so(tmp_path: Path, state: str, message: str) -> None:
    async with serving(NeMoServer(deployments=[state])) as server:
        config = configured(tmp_path, server.url)
        adapter = config.trainer_adapters["a"]
        changed = adapter.model_copy(update={"deployment_timeout_seconds": 0.05})
        with pytest.raises(UnavailableError, match=message):
            await run(config.model_copy(update={"trainer_adapters": {"a": changed}}), tmp_path)


async def test_a_run_has_one_job_however_often_it_is_submitted(tmp_path: Path) -> None:
    async with serving(NeMoServer()) as server:
        config = configured(tmp_path, server.url)
        await run(config, tmp_path)
        await run(config, tmp_path)
    assert len(server.jobs) == 1


async def test_a_failed_job_is_a_failed_status(tmp_path: Path) -> None:
    async with serving(NeMoServer(states=[{"status": "failed"}])) as server:
        (status,) = await run(configured(tmp_path, server.url), tmp_path)
    assert status.status is TrainingStatusEnum.FAILED
    assert not [path for path, _ in server.posted if "deployment" in path]


async def test_an_address_that_does_not_answer_says_so(tmp_path: Path) -> None:
    with pytest.raises(UnavailableError, match=r"Failed to connect to NeMo Customizer at http://127\.0\.0\.1:9"):
        await run(configured(tmp_path), tmp_path)


async def test_a_refusal_carries_the_servers_words(tmp_path: Path) -> None:
    async with serving(NeMoServer(states=[{"status": "gone", "http": 404}])) as server:
        with pytest.raises(RejectedError, match="answered 404"):
            await run(configured(tmp_path, server.url), tmp_path)


def test_hosts_lose_their_trailing_slash() -> None:
    config = NeMoCustomizerTrainerAdapterConfig(
        entity_host="http://a/", datastore_host="http://b//", namespace="n", customization_config="c"
    )
    assert (config.entity_host, config.datastore_host) == ("http://a", "http://b")
