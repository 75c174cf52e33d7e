"""A trainer that dies at any point of a step leaves one version and one job behind it, if the service is in time.

Every call through ART's client and every line of the journal is a point, before it and after it. After the kill nothing
more is said to the service. What the service cannot tell apart, a job that comes too late, is reported.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rollbus.schemas.errors import RejectedError, UnavailableError
from rollbus.trainer.backends.protocol import TrainRequest
from rollbus.trainer.backends.serverless.backend import ServerlessBackend
from rollbus.trainer.backends.serverless.client import ServerlessClient
from rollbus.trainer.backends.serverless.memory import ScriptedFailure
from tests.contracts.backend import submit_and_wait
from tests.trainer.backends.serverless.scene import QUICK, ServerlessScene, make_art_request

FIRST, SECOND, THIRD = (make_art_request(base, batch_hash=name * 32) for base, name in enumerate("abc"))


class KilledError(UnavailableError):
    """Ends a process, as far as these tests go."""


class Killer:
    """Raises at the n-th point, or at the first of a name, and at all after it."""

    def __init__(self, at: int | str | None = None) -> None:
        self.at, self.points = at, list[str]()

    def __call__(self, point: str) -> None:
        self.points.append(point)
        if point == self.at:
            self.at = len(self.points) - 1
        if isinstance(self.at, int) and len(self.points) > self.at:
            raise KilledError(f"killed at {point}")


class KilledClient(ServerlessClient):
    """Its calls are points."""

    killer = Killer()

    @asynccontextmanager
    async def asking(self, what: str) -> AsyncIterator[None]:
        self.killer(f"{what.split(' job-')[0]} before")
        async with super().asking(what):
            yield
        self.killer(f"{what.split(' job-')[0]} after")

    async def begin_job(self, *arguments: Any) -> str:
        job_id = await super().begin_job(*arguments)
        self.killer("the job's id has come after")
        return job_id


class KilledBackend(ServerlessBackend):
    """Its journal's lines are points."""

    def _record(self, entry: dict[str, Any]) -> None:
        assert isinstance(self.service, KilledClient)
        self.service.killer(f"{entry['kind']} before")
        super()._record(entry)
        self.service.killer(f"{entry['kind']} after")


async def train_until_killed(scene: ServerlessScene, killer: Killer, request: TrainRequest) -> None:
    """Start, train, and leave the folder as a dead process does."""
    backend = scene.make_backend(make_client=KilledClient, kind=KilledBackend)
    assert isinstance(backend.service, KilledClient)
    backend.service.killer = killer
    with suppress(UnavailableError):
        await backend.start()
        await submit_and_wait(backend, request)
    backend._release_folder()
    await backend.service.close()


async def train_undisturbed(scene: ServerlessScene, request: TrainRequest, **changes: Any) -> ServerlessBackend:
    """Start, train, and end."""
    backend = await scene.start(**changes)
    try:
        await submit_and_wait(backend, request)
    finally:
        await backend.close()
    return backend


async def list_points(folder: Path) -> list[str]:
    """Return the points of a start and the second step."""
    killer = Killer()
    async with ServerlessScene(folder).serve() as scene:
        await train_undisturbed(scene, FIRST)
        await train_until_killed(scene, killer, SECOND)
    return killer.points


async def test_a_kill_at_every_point_of_a_step_leaves_one_version_and_one_job(tmp_path: Path) -> None:
    points = await list_points(tmp_path / "points")
    expected = {"sending before", "sending after", "to train 2 trajectories before", "to train 2 trajectories after"}
    assert expected | {"job before", "job after", "trained before", "trained after"} <= set(points)
    for at, point in enumerate(points):
        async with ServerlessScene(tmp_path / str(at)).serve() as scene:
            await train_undisturbed(scene, FIRST)
            await train_until_killed(scene, Killer(at), SECOND)
            backend = await train_undisturbed(scene, SECOND)
            assert backend.weights_tree.versions[2] == (1, SECOND.batch_hash), point
            assert backend.weights_tree.head == 2, point
            assert len(scene.trained_jobs) == len(scene.service.jobs) == 2, point
            await train_undisturbed(scene, THIRD)
            assert len(scene.trained_jobs) == 3, point


async def test_a_kill_anywhere_in_the_first_start_leaves_a_working_backend(tmp_path: Path) -> None:
    killer = Killer()
    async with ServerlessScene(tmp_path / "points").serve() as scene:
        await train_until_killed(scene, killer, FIRST)
    before_sending = killer.points.index("sending before")
    for at in range(before_sending):
        async with ServerlessScene(tmp_path / str(at)).serve() as scene:
            await train_until_killed(scene, Killer(at), FIRST)
            backend = await train_undisturbed(scene, FIRST)
            assert backend.weights_tree.versions == {0: (None, None), 1: (0, FIRST.batch_hash)}
            assert len(scene.trained_jobs) == 1


async def test_a_job_whose_id_is_known_is_followed_however_long_it_takes(tmp_path: Path) -> None:
    async with ServerlessScene(tmp_path).serve() as scene:
        await train_undisturbed(scene, FIRST)
        scene.service.step_s = 3 * QUICK.settle_s
        await train_until_killed(scene, Killer("job after"), SECOND)
        backend = await train_undisturbed(scene, SECOND)
        assert (backend.weights_tree.head, len(scene.service.jobs)) == (2, 2)
        metrics = backend.weights_tree.results[SECOND.batch_hash].metrics
        assert (metrics["loss"], metrics["grad_norm"], metrics["gradient_steps"]) == (0.5, 1.0, 2.0)


async def test_a_batch_whose_answer_was_lost_gets_the_metrics_of_its_checkpoint(tmp_path: Path) -> None:
    async with ServerlessScene(tmp_path).serve() as scene:
        backend = await scene.start()
        scene.service.failures.append(ScriptedFailure("create_job", None, is_late=True))
        with pytest.raises(UnavailableError, match="to train 2 trajectories"):
            await submit_and_wait(backend, FIRST)
        assert await submit_and_wait(backend, FIRST) == 1
        assert len(scene.service.jobs) == 1
        assert (await backend.wait(FIRST.batch_hash)).metrics == {"loss": 0.5, "trajectories_trained": 2.0}
        await backend.close()


async def test_a_late_checkpoint_before_the_second_sending_is_the_version(
    tmp_path: Path,
) -> None:
    async with ServerlessScene(tmp_path).serve() as scene:
        await train_undisturbed(scene, FIRST)
        scene.service.paused = True
        await train_until_killed(scene, Killer("the job's id has come after"), SECOND)
        await train_until_killed(scene, Killer("sending before"), SECOND)
        scene.service.paused = False
        backend = await train_undisturbed(scene, SECOND)
        assert (backend.weights_tree.head, len(scene.service.jobs)) == (2, 2)


async def test_a_job_that_appears_after_settle_s_is_reported_as_trained_twice(
    tmp_path: Path,
) -> None:
    async with ServerlessScene(tmp_path).serve() as scene:
        backend = await scene.start()
        scene.service.paused = True
        scene.service.failures.append(ScriptedFailure("create_job", 504, is_late=True))
        with pytest.raises(UnavailableError, match="504"):
            await submit_and_wait(backend, FIRST)
        await backend.close()

        hasty = replace(QUICK, silence_s=QUICK.settle_s)
        backend = await scene.start(limits=hasty)
        with pytest.raises(UnavailableError, match="job-2 at W&B has given no event"):
            await submit_and_wait(backend, FIRST)
        scene.service.paused = False
        message = r"is at step 2 at W&B\. It was at 0, .* batch a+ was sent once: a job that came late.*accept_step: 2"
        for _ in range(2):
            with pytest.raises(UnavailableError, match=message):
                await submit_and_wait(backend, FIRST)
        assert (await backend.versions()).head == 0
        await backend.close()

        backend = await train_undisturbed(scene, FIRST, accept_step=2)
        assert backend.weights_tree.versions == {0: (None, None), 2: (0, FIRST.batch_hash)}
        await train_undisturbed(scene, make_art_request(2))
        assert len(scene.trained_jobs) == 3


async def test_an_unexpected_checkpoint_is_reported_before_a_batch_is_sent(
    tmp_path: Path,
) -> None:
    async with ServerlessScene(tmp_path).serve() as scene:
        backend = await train_undisturbed(scene, FIRST)
        stranger = scene.make_backend()
        model_id = scene.model.model.id
        await stranger.service.begin_job(model_id, FIRST.trajectories, {})
        await stranger.close()
        backend = await scene.start()
        with pytest.raises(UnavailableError, match=r"at step 2 at W&B\. It was at 1, and since then nothing was sent"):
            await submit_and_wait(backend, SECOND)
        assert len(scene.service.jobs) == 2
        await backend.close()
        backend = await train_undisturbed(scene, SECOND, accept_step=2)
        assert backend.weights_tree.versions[3] == (1, SECOND.batch_hash)


async def test_another_batch_waits_for_the_fate_of_the_one_before(tmp_path: Path) -> None:
    async with ServerlessScene(tmp_path).serve() as scene:
        backend = await scene.start()
        scene.service.failures.append(ScriptedFailure("create_job", None, is_late=True))
        with pytest.raises(UnavailableError):
            await submit_and_wait(backend, FIRST)
        other = make_art_request(0, batch_hash="d" * 32)
        with pytest.raises(RejectedError, match="the model has moved on to 1"):
            await submit_and_wait(backend, other)
        assert await backend.journal(FIRST.batch_hash) is not None
        assert len(scene.service.jobs) == 1
        await backend.close()


async def test_a_backend_that_is_closed_leaves_its_job_to_the_next_one(tmp_path: Path) -> None:
    async with ServerlessScene(tmp_path).serve() as scene:
        backend = await scene.start()
        scene.service.paused = True
        await backend.submit(FIRST)
        await scene.wait_for_jobs(1)
        await backend.close()
        scene.service.paused = False
        backend = await train_undisturbed(scene, FIRST)
        assert (backend.weights_tree.head, len(scene.service.jobs)) == (1, 1)
