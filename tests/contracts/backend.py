"""What every `Backend` keeps to; run on the shipped memory backend and on the real art-server.

A backend may be shared and stand at any version when a test begins, so every test counts from the head that it finds.
"""

import asyncio
import sys
import uuid
from collections.abc import Sequence
from dataclasses import replace

import pytest

from rollbus.schemas.errors import RejectedError
from rollbus.schemas.records.tokens import encode_logprobs, encode_token_ids
from rollbus.trainer.backends.protocol import Backend, TrainRequest, TrainResult, TrainTrajectory, TurnTokens
from rollbus.trainer.train_config import TrainConfig
from tests.waiting import until

MODEL = "agent"


def make_turn_tokens(version: int, *, completion: Sequence[int] = (6, 7), history: int = 0) -> TurnTokens:
    """A short turn with plausible numbers."""
    return TurnTokens(
        prompt_token_ids=encode_token_ids([3, 4, 5]),
        completion_token_ids=encode_token_ids(completion),
        logprobs=encode_logprobs([-1.5] * len(completion)),
        policy_version=version,
        history=history,
    )


def make_request(
    base: int, *, batch_hash: str | None = None, rewards: Sequence[float] = (0.0, 1.0), model: str = MODEL
) -> TrainRequest:
    """One group with such rewards, of which each member sampled something else."""
    mean = sum(rewards) / len(rewards)
    trajectories = tuple(
        TrainTrajectory(
            trajectory_id=f"t{index}",
            group_id="g",
            advantage=reward - mean,
            reward=reward,
            turns=(make_turn_tokens(base, completion=(6 + index, 7)),),
        )
        for index, reward in enumerate(rewards)
    )
    return TrainRequest(
        batch_hash=batch_hash or uuid.uuid4().hex,
        run_id="main",
        model=model,
        base_version=base,
        trajectories=trajectories,
        config=TrainConfig(learning_rate=1e-4),
    )


class BackendContract:
    """The tests; a subclass gives the `backend` fixture."""

    config = TrainConfig(learning_rate=1e-4)
    """Of every batch; a subclass may have another."""

    def make_request(
        self,
        base: int,
        *,
        batch_hash: str | None = None,
        rewards: Sequence[float] = (0.0, 1.0),
        model: str = MODEL,
    ) -> TrainRequest:
        """Return a batch that this backend can train."""
        request = make_request(base, batch_hash=batch_hash, rewards=rewards, model=model)
        return replace(request, config=self.config)

    async def test_a_backend_is_healthy_and_names_its_capabilities(self, backend: Backend) -> None:
        assert isinstance(backend, Backend)
        assert await backend.is_healthy()
        capabilities = await backend.capabilities()
        assert capabilities.model == MODEL
        assert capabilities.max_sequence_tokens > 8

    async def test_a_batch_becomes_a_journalled_version_with_its_base_as_parent(self, backend: Backend) -> None:
        base = (await backend.versions()).head
        request = self.make_request(base)
        assert await backend.journal(request.batch_hash) is None
        assert await backend.submit(request) == request.batch_hash
        result = await backend.wait(request.batch_hash, 0.05)
        assert (result.state, result.base_version) == ("completed", base)
        assert result.version > base
        assert sorted(result.trained_ids) == ["t0", "t1"]
        assert result.dropped == {}
        versions = await backend.versions()
        assert versions.head == result.version == (await backend.versions()).head
        (version,) = [known_version for known_version in versions.known if known_version.version == result.version]
        assert (version.parent, version.batch_hash, version.checkpoint) == (base, request.batch_hash, result.checkpoint)
        assert await backend.journal(request.batch_hash) == result
        status = await backend.status(request.batch_hash)
        assert (status.state, status.progress) == ("completed", 1.0)
        assert (await backend.cancel(request.batch_hash)).state == "completed", "what has ended stays as it is"

    async def test_submitting_a_hash_again_never_trains_twice(self, backend: Backend) -> None:
        request = self.make_request((await backend.versions()).head)
        await asyncio.gather(backend.submit(request), backend.submit(request))
        result = await backend.wait(request.batch_hash, 0.05)
        await backend.submit(request)
        assert await backend.wait(request.batch_hash, 0.05) == result
        assert (await backend.versions()).head == result.version

    async def test_a_batch_that_is_only_prepared_is_neither_known_nor_trained(self, backend: Backend) -> None:
        base = (await backend.versions()).head
        request = self.make_request(base)
        await backend.prepare(request)
        assert await backend.journal(request.batch_hash) is None
        with pytest.raises(RejectedError, match="never"):
            await backend.status(request.batch_hash)
        assert (await backend.versions()).head == base

    async def test_a_prepared_batch_trains_once_and_from_the_base_that_submit_names(self, backend: Backend) -> None:
        base = (await backend.versions()).head
        request = self.make_request(base)
        await backend.prepare(replace(request, base_version=base + 1000))
        await backend.submit(request)
        await backend.submit(request)
        result = await backend.wait(request.batch_hash, 0.05)
        assert (result.state, result.base_version) == ("completed", base)
        assert (await backend.versions()).head == result.version

    async def test_preparing_a_batch_leaves_others_alone(self, backend: Backend) -> None:
        request = self.make_request((await backend.versions()).head)
        await backend.submit(request)
        await backend.prepare(self.make_request(request.base_version))
        result = await backend.wait(request.batch_hash, 0.05)
        assert result.batch_hash == request.batch_hash
        assert (await backend.versions()).head == result.version

    async def test_one_of_two_batches_for_one_base_is_refused(self, backend: Backend) -> None:
        base = (await backend.versions()).head
        requests = self.make_request(base), self.make_request(base)
        await asyncio.gather(*(backend.submit(request) for request in requests))
        ended = await asyncio.gather(
            *(backend.wait(request.batch_hash, 0.05) for request in requests), return_exceptions=True
        )
        (trained,) = [outcome for outcome in ended if isinstance(outcome, TrainResult)]
        (refused,) = [outcome for outcome in ended if isinstance(outcome, BaseException)]
        assert isinstance(refused, RejectedError)
        versions = await backend.versions()
        assert versions.head == trained.version
        assert [version.version for version in versions.known if version.parent == base] == [trained.version]

    async def test_the_tokens_of_a_batch_that_has_ended_are_let_go(self, backend: Backend) -> None:
        request = self.make_request((await backend.versions()).head)
        references_before = sys.getrefcount(request)
        await submit_and_wait(backend, request)
        await until(lambda: sys.getrefcount(request) <= references_before, "the batch is kept")

    async def test_a_batch_never_submitted_is_refused_by_status_and_wait(self, backend: Backend) -> None:
        with pytest.raises(RejectedError, match="never"):
            await backend.status("unknown")
        with pytest.raises(RejectedError, match="never"):
            await backend.wait("unknown", 0.05)

    async def test_a_batch_without_signal_is_skipped_and_leaves_the_weights(self, backend: Backend) -> None:
        base = (await backend.versions()).head
        request = self.make_request(base, rewards=(1.0, 1.0))
        await backend.submit(request)
        result = await backend.wait(request.batch_hash, 0.05)
        assert (result.state, result.version, result.trained_ids) == ("skipped", base, ())
        assert dict(result.dropped) == {"t0": "no_signal", "t1": "no_signal"}
        assert (await backend.versions()).head == base

    async def test_a_batch_for_another_base_is_refused_and_trains_nothing(self, backend: Backend) -> None:
        base = (await backend.versions()).head
        request = self.make_request(base + 1000)
        with pytest.raises(RejectedError, match=str(base + 1000)):
            await submit_and_wait(backend, request)
        assert await backend.journal(request.batch_hash) is None
        assert (await backend.versions()).head == base

    async def test_a_batch_for_another_model_is_refused(self, backend: Backend) -> None:
        with pytest.raises(RejectedError, match="another"):
            await submit_and_wait(backend, self.make_request((await backend.versions()).head, model="another"))

    async def test_promoting_serves_a_version_and_leaves_the_head(self, backend: Backend) -> None:
        base = (await backend.versions()).head
        result = await submit_and_wait(backend, self.make_request(base))
        await backend.promote(base)
        assert (await backend.versions()).serving == base
        await backend.promote(result)
        versions = await backend.versions()
        assert (versions.serving, versions.head) == (result, result)
        assert all(version.loaded for version in versions.known if version.version == result)

    async def test_an_update_that_is_to_serve_its_version_serves_it_before_it_ends(self, backend: Backend) -> None:
        assert (await backend.capabilities()).serves_on_request
        base = (await backend.versions()).head
        await backend.promote(base)
        beside = await submit_and_wait(backend, self.make_request(base))
        assert (await backend.versions()).serving == base
        result = await submit_and_wait(backend, replace(self.make_request(beside), serve=True))
        versions = await backend.versions()
        assert (versions.serving, versions.head) == (result, result)
        skipped = replace(self.make_request(result, rewards=(1.0, 1.0)), serve=True)
        await backend.promote(beside)
        assert await submit_and_wait(backend, skipped) == result
        assert (await backend.versions()).serving == beside

    async def test_a_version_after_a_rollback_has_a_new_number(self, backend: Backend) -> None:
        """A backend that cannot roll back refuses it by name."""
        base = (await backend.versions()).head
        abandoned = self.make_request(base)
        undone = await submit_and_wait(backend, abandoned)
        if not (await backend.capabilities()).rolls_back:
            with pytest.raises(RejectedError, match=f"cannot go back to {base}"):
                await backend.promote(base, rollback=True)
            assert (await backend.versions()).head == undone
            return
        await backend.promote(base, rollback=True)
        assert (await backend.versions()).head == base
        assert await backend.journal(abandoned.batch_hash) is None
        regrown = await submit_and_wait(backend, self.make_request(base))
        assert regrown > undone
        parents = {version.version: version.parent for version in (await backend.versions()).known}
        assert parents[regrown] == base

    async def test_promoting_what_does_not_exist_is_refused(self, backend: Backend) -> None:
        with pytest.raises(RejectedError, match="100000"):
            await backend.promote(100_000)


async def submit_and_wait(backend: Backend, request: TrainRequest) -> int:
    """Return the version that a batch made."""
    await backend.submit(request)
    return (await backend.wait(request.batch_hash, 0.05)).version
