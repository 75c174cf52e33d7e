"""What the adapter to ART asks of the configured address, and what the run's settings make of the configuration."""

import json
from pathlib import Path
from typing import Any, cast

import httpx
import pytest
from nat.data_models.finetuning import FinetuneConfig

from rollbus.local.process.ports import find_free_port
from rollbus.nemo.art_server import register
from rollbus.nemo.bus.run_log import RunLog
from rollbus.nemo.components import ARTBackendConfig, BusTrainerAdapterConfig
from rollbus.nemo.runs.run import CURRENT, Run
from rollbus.nemo.runs.settings import settings_of
from rollbus.nemo.trainer_adapter import BusTrainerAdapter
from rollbus.schemas.errors import RejectedError, UnavailableError
from rollbus.settings import Settings
from tests.nemo.world import document, read

BACKEND: dict[str, Any] = {
    "ip": "10.0.0.7",
    "port": 7623,
    "name": "agent",
    "project": "shop",
    "base_model": "Qwen/Qwen2.5-3B-Instruct",
    "api_key": "s3cret",
    "delete_old_checkpoints": True,
    "init_args": {"max_seq_length": 4096, "load_in_4bit": True},
    "engine_args": {"gpu_memory_utilization": 0.7, "tensor_parallel_size": 2},
    "server_config": {"port": 8001},
}


class Server:
    """Keeps what it is asked; answers everything with `status`."""

    def __init__(self, status: int = 200) -> None:
        self.requests: list[httpx.Request] = []
        self.status = status

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        return httpx.Response(self.status, json=None)


async def test_every_field_of_the_backend_reaches_the_server() -> None:
    server = Server()
    await register(ARTBackendConfig(**BACKEND), httpx.MockTransport(server))
    first, prepared, deleted = server.requests
    assert [request.url.path for request in server.requests] == [
        "/register",
        "/_prepare_backend_for_training",
        "/_delete_checkpoint_files",
    ]
    assert {str(request.url).removesuffix(request.url.path) for request in server.requests} == {"http://10.0.0.7:7623"}
    assert first.headers["authorization"] == "Bearer s3cret"
    assert json.loads(first.content) == {
        "name": "agent",
        "project": "shop",
        "base_model": "Qwen/Qwen2.5-3B-Instruct",
        "config": None,
        "trainable": True,
        "_internal_config": {name: BACKEND[name] for name in ("init_args", "engine_args")},
    }
    assert json.loads(prepared.content)["config"] == {"port": 8001}
    assert json.loads(deleted.content)["steps_to_keep"] == []


async def test_without_options_only_the_model_is_registered_and_no_key_is_sent(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("ROLLBUS_SECRETS", str(tmp_path))
    server = Server()
    await register(ARTBackendConfig(ip="localhost", port=1), httpx.MockTransport(server))
    (first,) = server.requests
    assert "authorization" not in first.headers
    assert json.loads(first.content)["_internal_config"] == {}


async def test_a_refusal_names_the_model() -> None:
    with pytest.raises(RejectedError, match="refused model 'agent'"):
        await register(ARTBackendConfig(**BACKEND), httpx.MockTransport(Server(400)))


async def test_no_answer_at_the_configured_address_says_what_to_look_at(
    tmp_path: Path,
) -> None:
    host, port = "127.0.0.1", find_free_port()
    plain = document(tmp_path)
    plain["rollbus"] = {}
    CURRENT.set(Run(read(tmp_path, plain), "run-1", cast(RunLog, None)))
    config = BusTrainerAdapterConfig.model_validate({"backend": {"ip": host, "port": port}})
    adapter = BusTrainerAdapter(config)
    assert adapter.health_url == f"http://{host}:{port}/health"
    with pytest.raises(UnavailableError, match=rf"Failed to connect to ART backend at http://{host}:{port}: .*curl"):
        await adapter.initialize(FinetuneConfig())


def settings(tmp_path: Path, **sections: dict[str, dict[str, Any]]) -> Settings:
    """What a configuration makes of the run's settings, some entries of its sections changed."""
    plain = document(tmp_path, target_functions=["planner"], target_model="policy")
    plain["trainer_adapters"]["a"]["backend"] = {**BACKEND, "base_model": "base", "server_config": None}
    plain["rollbus"] = {}
    for section, entries in sections.items():
        for name, values in entries.items():
            plain[section].setdefault(name, {}).update(values)
    return Settings.model_validate(settings_of(read(tmp_path, plain), "run-1", "run-1."))


def test_training_and_backend_reach_the_trainers_settings(tmp_path: Path) -> None:
    run_settings = settings(tmp_path)
    trainer = run_settings.trainer_settings()
    assert trainer.backend.model_dump()["url"] == "http://10.0.0.7:7623"
    token = getattr(trainer.backend, "token")  # noqa: B009
    assert token.get_secret_value() == "s3cret"
    assert (trainer.train.learning_rate, trainer.train.kl_coefficient) == (1e-4, 0.25)
    assert (
        run_settings.art_server.model,
        run_settings.art_server.max_tokens,
        run_settings.art_server.keep_checkpoints,
    ) == (
        "agent",
        4096,
        1,
    )


def test_targets_reach_assembly_by_the_name_that_answers_carry(tmp_path: Path) -> None:
    assembly = settings(tmp_path).assembly
    assert assembly.target_functions == ("planner",)
    assert assembly.target_model == "agent", "the entry's base model is asked for under the trained one's name"


def test_tool_calls_and_the_shortest_episode_reach_assembly(tmp_path: Path) -> None:
    assembly = settings(
        tmp_path, trajectory_builders={"b": {"include_tool_calls": False, "min_episode_length": 5}}
    ).assembly
    assert (assembly.include_tool_calls, assembly.min_episode_length) == (False, 3)


def test_another_temperature_asks_for_log_probs_of_what_was_sampled(tmp_path: Path) -> None:
    assert settings(tmp_path).art_server.logprobs_mode == "raw"
    assert settings(tmp_path, llms={"policy": {"temperature": 0.4}}).art_server.logprobs_mode == "processed"


def test_a_users_settings_lie_over_those_of_the_run(tmp_path: Path) -> None:
    own_settings = {"trainer": {"train": {"entropy_bonus": 0.02}}}
    train = settings(tmp_path, rollbus={"settings": own_settings}).trainer.train
    assert (train.entropy_bonus, train.learning_rate) == (0.02, 1e-4)
