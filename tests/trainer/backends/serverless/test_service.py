"""What the service answers → what a step, or a start, comes to."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from rollbus.local.process.ports import find_free_port
from rollbus.schemas.errors import ConfigurationError, RejectedError, UnavailableError
from rollbus.trainer.backends.durable.journaled import JOURNAL_NAME
from rollbus.trainer.backends.model_settings import Retention
from rollbus.trainer.backends.serverless.memory import ScriptedFailure
from rollbus.trainer.backends.serverless.service import JobNotTakenError
from tests.contracts.backend import submit_and_wait
from tests.trainer.backends.serverless.scene import ServerlessScene, make_art_request


@pytest.mark.parametrize("status", [401, 403, 404, 429])
async def test_a_job_that_the_service_surely_did_not_take_is_tried_again_at_once(tmp_path: Path, status: int) -> None:
    async with ServerlessScene(tmp_path).serve() as scene:
        backend, request = await scene.start(), make_art_request(0)
        scene.service.failures.append(ScriptedFailure("create_job", status))
        with pytest.raises(UnavailableError, match=str(status)):
            await submit_and_wait(backend, request)
        assert last_line(scene)["kind"] == "not_trained"
        assert await submit_and_wait(backend, request) == 1
        await backend.close()


@pytest.mark.parametrize("status", [400, 413, 422])
async def test_a_batch_that_the_service_refuses_is_rejected(tmp_path: Path, status: int) -> None:
    async with ServerlessScene(tmp_path).serve() as scene:
        backend, request = await scene.start(), make_art_request(0)
        scene.service.failures.append(ScriptedFailure("create_job", status))
        with pytest.raises(RejectedError, match=rf"to train 2 trajectories: .*{status}"):
            await submit_and_wait(backend, request)
        assert await submit_and_wait(backend, make_art_request(0)) == 1
        await backend.close()


@pytest.mark.parametrize("status", [409, 500, 502, 503])
async def test_a_batch_with_an_ambiguous_answer_waits_for_its_checkpoint(tmp_path: Path, status: int) -> None:
    async with ServerlessScene(tmp_path).serve() as scene:
        backend, request = await scene.start(), make_art_request(0)
        scene.service.failures.append(ScriptedFailure("create_job", status))
        with pytest.raises(UnavailableError, match=str(status)):
            await submit_and_wait(backend, request)
        assert last_line(scene)["kind"] == "sending"
        assert await submit_and_wait(backend, request) == 1
        assert len(scene.service.jobs) == 1
        await backend.close()


async def test_a_service_that_is_not_there_has_begun_no_job(tmp_path: Path) -> None:
    async with ServerlessScene(tmp_path).serve() as scene:
        client = scene.make_client(scene.access(url=f"http://127.0.0.1:{find_free_port()}/v1"))
        with pytest.raises(JobNotTakenError, match="to train 2 trajectories"):
            await client.begin_job("model-1", make_art_request(0).trajectories, {})
        await client.close()


async def test_a_job_that_fails_fails_its_step_with_the_services_words(tmp_path: Path) -> None:
    async with ServerlessScene(tmp_path).serve() as scene:
        backend, request = await scene.start(), make_art_request(0)
        scene.service.failure_message = "out of memory"
        with pytest.raises(UnavailableError, match=r"job job-1 of batch .* failed at W&B: out of memory"):
            await submit_and_wait(backend, request)
        scene.service.failure_message = None
        assert await submit_and_wait(backend, request) == 1
        await backend.close()


async def test_a_job_that_the_service_has_forgotten_is_judged_by_its_checkpoint(tmp_path: Path) -> None:
    async with ServerlessScene(tmp_path).serve() as scene:
        backend, request = await scene.start(), make_art_request(0)
        scene.service.failures.append(ScriptedFailure("list_events", 404))
        assert await submit_and_wait(backend, request) == 1
        assert (len(scene.service.jobs), scene.trained_jobs) == (1, ["job-1"])
        await backend.close()


async def test_reading_is_repeated_by_arts_client(tmp_path: Path) -> None:
    async with ServerlessScene(tmp_path).serve() as scene:
        backend = await scene.start()
        scene.service.failures += [ScriptedFailure(call, 503) for call in ("list_checkpoints", "list_events")]
        assert await submit_and_wait(backend, make_art_request(0)) == 1
        assert await backend.is_healthy()
        scene.service.failures += [ScriptedFailure("list_checkpoints", 503)] * 4
        assert not await backend.is_healthy()
        await backend.close()


@pytest.mark.parametrize("status", [400, 401, 403, 404, 422])
async def test_a_start_that_the_service_refuses_names_the_settings(tmp_path: Path, status: int) -> None:
    async with ServerlessScene(tmp_path).serve() as scene:
        scene.service.failures.append(ScriptedFailure("create_model", status))
        backend = scene.make_backend()
        with pytest.raises(ConfigurationError, match=r"for the model tickets/agent-1: .*WANDB_API_KEY"):
            await backend.start()
        await backend.close()


async def test_a_wrong_key_is_refused_at_the_start(tmp_path: Path) -> None:
    async with ServerlessScene(tmp_path).serve() as scene:
        backend = scene.make_backend(api_key="another")
        with pytest.raises(ConfigurationError, match="401"):
            await backend.start()
        await backend.close()


async def test_a_folder_of_another_model_is_refused(tmp_path: Path) -> None:
    async with ServerlessScene(tmp_path).serve() as scene:
        await (await scene.start()).close()
        for other in ({"name": "agent-2"}, {"entity": "another-team"}):
            backend = scene.make_backend(access=scene.access(**other))
            with pytest.raises(ConfigurationError, match="give this model another directory"):
                await backend.start()
            await backend.close()


async def test_a_model_trained_elsewhere_begins_only_at_the_accepted_step(tmp_path: Path) -> None:
    async with ServerlessScene(tmp_path).serve() as scene:
        backend = await scene.start()
        await submit_and_wait(backend, make_art_request(0))
        await backend.close()
        (scene.folder / "journal" / JOURNAL_NAME).unlink()
        backend = scene.make_backend()
        with pytest.raises(ConfigurationError, match=r"trained before, up to step 1.*accept_step: 1"):
            await backend.start()
        await backend.close()
        backend = await scene.start(accept_step=1)
        assert (await backend.versions()).known[0].checkpoint.endswith("agent-1:step1")
        assert await submit_and_wait(backend, make_art_request(0)) == 2
        await backend.close()


async def test_checkpoints_that_were_deleted_at_the_service_are_reported(tmp_path: Path) -> None:
    async with ServerlessScene(tmp_path).serve() as scene:
        backend = await scene.start()
        await submit_and_wait(backend, make_art_request(0))
        scene.model.checkpoints.clear()
        with pytest.raises(UnavailableError, match=r"at step 0 at W&B, and was at 1: checkpoints have been deleted"):
            await submit_and_wait(backend, make_art_request(1))
        await backend.close()


async def test_a_version_has_the_name_by_which_wandb_serves_it(tmp_path: Path) -> None:
    async with ServerlessScene(tmp_path).serve() as scene:
        backend = await scene.start()
        await submit_and_wait(backend, make_art_request(0))
        names = [version.checkpoint for version in (await backend.versions()).known]
        assert names == [f"wandb-artifact:///default-entity/tickets/agent-1:step{step}" for step in (0, 1)]
        await backend.close()


async def test_versions_beyond_retention_are_deleted_at_the_service(tmp_path: Path) -> None:
    async with ServerlessScene(tmp_path).serve() as scene:
        backend = await scene.start(retention=Retention(keep_newest=2, keep_every=3))
        for base in range(6):
            await submit_and_wait(backend, replace(make_art_request(base), serve=True))
        assert [version.version for version in (await backend.versions()).known] == [0, 3, 5, 6]
        assert sorted(scene.model.checkpoints) == [3, 5, 6]
        with pytest.raises(RejectedError, match="retention"):
            await backend.promote(4)
        await backend.close()


def last_line(scene: ServerlessScene) -> dict[str, object]:
    """Return the last entry of the journal."""
    line: dict[str, object] = json.loads((scene.folder / "journal" / JOURNAL_NAME).read_text().splitlines()[-1])
    return line
