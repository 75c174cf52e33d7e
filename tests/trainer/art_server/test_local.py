"""The model inside the trainer's process keeps to the contract of every backend, and to what ART's clients expect."""

import json
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from rollbus.schemas.errors import RejectedError, UnavailableError
from rollbus.trainer.art_server.control.local import ArtLocal
from rollbus.trainer.art_server.control.server import build_control_app
from rollbus.trainer.backends.model_settings import ModelOptions, Retention, ServiceSettings
from rollbus.trainer.backends.protocol import TrainResult
from rollbus.trainer.train_config import TrainConfig
from tests.contracts.backend import BackendContract, make_request, submit_and_wait


@pytest.fixture(autouse=True)
def _without_art(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let nothing import ART: its clients are answered without it."""
    monkeypatch.setitem(sys.modules, "art", None)


class TestArtLocal(BackendContract):
    @pytest.fixture
    async def backend(self, base_model: Path, tmp_path: Path) -> AsyncIterator[ArtLocal]:
        options = ModelOptions(max_rows=4, keep_versions=2)
        settings = ServiceSettings("agent", base_model, tmp_path, options=options)
        local_backend = ArtLocal(settings)
        await local_backend.start()
        yield local_backend
        await local_backend.close()

    async def test_a_waiting_batch_can_be_canceled_and_submitted_again(self, backend: ArtLocal) -> None:
        first, second = make_request(0), make_request(0)
        async with backend.updates_held():
            await backend.submit(first)
            await backend.submit(second)
            assert (await backend.cancel(second.batch_hash)).state == "canceled"
        assert (await backend.wait(first.batch_hash, 0.05)).version == 1
        with pytest.raises(RejectedError, match="canceled"):
            await backend.wait(second.batch_hash, 0.05)
        assert (await backend.versions()).head == 1
        again = replace(second, base_version=1)
        assert await submit_and_wait(backend, again) == 2

    async def test_a_result_missing_from_the_journal_is_read_from_its_checkpoint(
        self, backend: ArtLocal, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def full(_: TrainResult) -> None:
            raise UnavailableError("no space left")

        request = make_request(0)
        with monkeypatch.context() as patched:
            patched.setattr(backend.session.journal, "done", full)
            with pytest.raises(UnavailableError, match="no space left"):
                await submit_and_wait(backend, request)
        assert (await backend.versions()).head == 0
        assert await submit_and_wait(backend, request) == 1
        assert [version.version for version in (await backend.versions()).known] == [0, 1]

    async def test_an_unrecorded_update_of_an_old_client_is_not_trained_again(
        self, backend: ArtLocal, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def full(*_: Any) -> None:
            raise UnavailableError("no space left")

        app = build_control_app(backend)
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://art", timeout=120) as http:
            with monkeypatch.context() as patched:
                patched.setattr(backend.session.journal, "done", full)
                answer_line, error_line = (await http.post("/_train_model", json=old_body())).text.splitlines()
                assert "no space left" in json.loads(error_line)["error"]
            versions = await backend.versions()
            step = (await http.post("/_get_step", json={"name": "agent"})).json()
            assert (step, versions.head, versions.serving) == (0, 0, 0)
            for body, number in ((old_body(2.0), 2), (old_body(), 2), (old_body(), 3)):  # another's, again, once more
                answer = (await http.post("/_train_model", json=body)).json()
                assert answer["num_gradient_steps"] == 1
                versions = await backend.versions()
                step = (await http.post("/_get_step", json={"name": "agent"})).json()
                assert (step, versions.head, versions.serving) == (number, number, number)
                assert (answer == json.loads(answer_line)) == (body == old_body() and number == 2)
        assert [version.parent for version in versions.known] == [None, 0, 1, 2]

    async def test_the_kl_penalty_of_an_old_client_is_taken_against_the_base_model(self, backend: ArtLocal) -> None:
        app = build_control_app(backend)
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://art", timeout=120) as http:
            for beta in (0.5, 0.5, -1.0):
                body = {**old_body(), "config": {"learning_rate": 1e-2, "beta": beta}}
                answer = (await http.post("/_train_model", json=body)).json()
        assert "beta -1.0 would spoil" in answer["error"]
        metrics = backend.service.store.provenance(2)["result"]["metrics"]
        assert metrics["reference_kl"] > 0

    async def test_a_batch_with_only_zero_advantages_is_refused(self, backend: ArtLocal) -> None:
        request = make_request(0)
        trajectories = tuple(replace(trajectory, advantage=0.0, reward=1.0) for trajectory in request.trajectories)
        flat = replace(request, trajectories=trajectories[:1], config=TrainConfig(advantages="art"))
        await backend.submit(flat)
        with pytest.raises(RejectedError, match="all its advantages are 0"):
            await backend.wait(flat.batch_hash, 0.05)
        assert (await backend.versions()).head == 0

    async def test_a_client_of_art_with_groups_of_one_makes_no_step(self, backend: ArtLocal) -> None:
        body = old_body()
        del body["trajectory_groups"][0]["trajectories"][1]
        app = build_control_app(backend)
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://art", timeout=120) as http:
            line = (await http.post("/_train_model", json=body)).json()
        assert (line["num_gradient_steps"], line["data/step_num_groups_trainable"]) == (0, 0)
        assert (await backend.versions()).head == 0

    async def test_retention_removes_old_checkpoints_and_keeps_their_history(
        self, base_model: Path, tmp_path: Path
    ) -> None:
        retention = Retention(keep_newest=1, keep_every=2)
        settings = ServiceSettings("agent", base_model, tmp_path / "kept", retention=retention)
        backend = ArtLocal(settings)
        await backend.start()
        requests = [replace(make_request(0), base_version=base) for base in range(4)]
        for request in requests:
            await backend.submit(request)
            result = await backend.wait(request.batch_hash, 0.05)
            assert sorted(result.trained_ids) == ["t0", "t1"], "turns of the base model stay on the lineage"
        with pytest.raises(RejectedError, match="retention removed it"):
            await backend.promote(1)
        await backend.close()
        restarted = ArtLocal(settings)
        await restarted.start()
        versions = await restarted.versions()
        assert [version.version for version in versions.known] == [0, 2, 3, 4], "every second, the head and its parent"
        assert (versions.head, restarted.service.store.lineage(4)) == (4, [4, 3, 2, 1, 0])
        first_result = await restarted.journal(requests[0].batch_hash)
        assert first_result is not None
        assert first_result.version == 1, "a batch whose checkpoint is gone is still known, and would not train again"
        app = build_control_app(restarted)
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://art", timeout=120) as http:
            for _ in range(3):
                assert (await http.post("/_train_model", json=old_body())).json()["num_gradient_steps"] == 1
        kept_versions = [version.version for version in (await restarted.versions()).known]
        await restarted.close()
        assert kept_versions == [0, 2, 4, 5, 6, 7], "and what served before the head"


def old_body(best: float = 1.0) -> dict[str, Any]:
    """A group of two answers, as ART's released clients send it."""
    content = [{"token": f"token_id:{number}", "logprob": -5.9} for number in (7, 8)]
    choice = {
        "finish_reason": "stop",
        "message": {"role": "assistant", "content": "a"},
        "logprobs": {"content": content},
    }
    chat = [{"role": "user", "content": "choose"}, {**choice, "prompt_token_ids": [5, 6], "token_ids": [7, 8]}]
    rows = [{"messages_and_choices": chat, "reward": reward} for reward in (0.0, best)]
    return {"model": {"name": "agent"}, "trajectory_groups": [{"trajectories": rows}]}
