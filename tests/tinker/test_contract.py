"""The backend keeps to its contract at a real service, and the service to what the shipped fake shows."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from rollbus.schemas.records.tokens import decode_logprobs, encode_logprobs, encode_token_ids
from rollbus.trainer.backends.model_settings import ModelOptions, ServiceSettings
from rollbus.trainer.backends.protocol import TrainTrajectory, TurnTokens
from rollbus.trainer.backends.tinker.backend import TinkerBackend
from rollbus.trainer.backends.tinker.memory import MemoryTinker
from rollbus.trainer.backends.tinker.opening import open_tinker
from rollbus.trainer.backends.tinker.sdk import SdkService
from rollbus.trainer.backends.tinker.sequences import make_loss_sequences
from rollbus.trainer.backends.tinker.service import (
    AdamSettings,
    LossSequence,
    SamplingRequest,
    ServiceLoss,
    TinkerService,
    TrainingRun,
    VersionSampler,
)
from rollbus.trainer.backends.tinker.settings import TinkerAccess
from rollbus.trainer.train_config import TrainConfig
from tests.contracts.backend import MODEL, BackendContract
from tests.tiny_qwen3 import VOCABULARY

pytestmark = [pytest.mark.tinker, pytest.mark.timeout(1800)]

ADAM = AdamSettings(learning_rate=0.005, beta1=0.9, beta2=0.99, weight_decay=0.0, max_grad_norm=1.0)
PROMPT = (3, 4, 5)
ASK = SamplingRequest(max_tokens=4, temperature=1.0, top_p=1.0, seed=11, stop_ids=(0,))


def make_access(url: str, base_model: Path) -> TinkerAccess:
    return TinkerAccess(url=url, base_model=str(base_model), lora_rank=8)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("journal")


class TestTinkerBackendAtSkyRL(BackendContract):
    @pytest.fixture
    async def backend(self, skyrl: str, base_model: Path, folder: Path) -> AsyncIterator[TinkerBackend]:
        """One after the other in one folder: each test begins where the one before ended."""
        access, options = make_access(skyrl, base_model), ModelOptions(max_tokens=64)
        backend = await open_tinker(ServiceSettings(MODEL, base_model, folder, options=options, tinker=access))
        yield backend
        await backend.close()


class ServiceContract:
    """What every `TinkerService` keeps to."""

    async def test_log_probs_of_a_pass_are_those_that_were_sampled(self, service: TinkerService) -> None:
        run, sampler, turn = await sample_from_new_run(service)
        (trained,), loss = make_loss_sequences([make_trajectory(turn)], TrainConfig(loss="importance_sampling"))
        output = await run.forward_backward([trained.sequence], loss)
        (span,) = trained.spans
        recorded_logprobs = list(decode_logprobs(turn.logprobs))
        assert list(output.logprobs[0][span.start : span.end]) == pytest.approx(recorded_logprobs, abs=1e-4)
        assert len(output.logprobs[0]) == len(trained.sequence.target_ids)
        whole = [*PROMPT, *trained.sequence.target_ids[len(PROMPT) - 1 :]]
        assert (await sampler.score(whole))[span.start : span.end] == pytest.approx(recorded_logprobs, abs=1e-4)
        await sampler.close()
        await run.close()

    @pytest.mark.parametrize(
        "loss",
        [
            ServiceLoss("importance_sampling", {}),
            ServiceLoss("ppo", {"clip_low_threshold": 0.8, "clip_high_threshold": 1.2}),
            ServiceLoss("cispo", {"clip_low_threshold": 0.0, "clip_high_threshold": 5.0}),
        ],
        ids=["importance_sampling", "ppo", "cispo"],
    )
    async def test_a_step_makes_rewarded_tokens_likelier(self, service: TinkerService, loss: ServiceLoss) -> None:
        run, sampler, turn = await sample_from_new_run(service)
        (trained,), _ = make_loss_sequences([make_trajectory(turn)], TrainConfig())
        before = await pass_and_step(run, trained.sequence, loss)
        after = await run.forward_backward([trained.sequence], loss)
        (span,) = trained.spans
        assert sum(after.logprobs[0][span.start : span.end]) > sum(before[span.start : span.end])
        await sampler.close()
        await run.close()

    async def test_a_resumed_run_trains_like_the_original_run(self, service: TinkerService) -> None:
        run, sampler, turn = await sample_from_new_run(service)
        (trained,), loss = make_loss_sequences([make_trajectory(turn)], TrainConfig(loss="importance_sampling"))
        await pass_and_step(run, trained.sequence, loss)
        state = await run.save_state("one")
        assert state in await service.saved_paths(run.run_id)
        resumed = await service.resume_run(state)
        for either in (run, resumed):
            await pass_and_step(either, trained.sequence, loss)
        outputs = [await either.forward_backward([trained.sequence], loss) for either in (run, resumed)]
        assert outputs[0].logprobs[0] == pytest.approx(outputs[1].logprobs[0], abs=1e-5), "the optimizer's state too"
        await service.delete(state)
        assert state not in await service.saved_paths(run.run_id)
        for opened in (sampler, resumed, run):
            await opened.close()

    async def test_sampling_a_version_does_not_change_the_trained_weights(self, service: TinkerService) -> None:
        run, sampler, turn = await sample_from_new_run(service)
        (trained,), loss = make_loss_sequences([make_trajectory(turn)], TrainConfig(loss="importance_sampling"))
        await pass_and_step(run, trained.sequence, loss)
        before = await run.forward_backward([trained.sequence], loss)
        again = await sampler.sample(PROMPT, ASK)
        assert encode_token_ids(again.token_ids) == turn.completion_token_ids, "of the version before the step"
        after = await run.forward_backward([trained.sequence], loss)
        assert before.logprobs == after.logprobs
        await sampler.close()
        await run.close()

    async def test_two_versions_are_sampled_at_once(self, service: TinkerService) -> None:
        run, sampler, turn = await sample_from_new_run(service)
        (trained,), loss = make_loss_sequences([make_trajectory(turn)], TrainConfig(loss="importance_sampling"))
        await pass_and_step(run, trained.sequence, loss)
        other = await service.open_sampler(await run.save_state("two"))
        old, new = await asyncio.gather(sampler.sample(PROMPT, ASK), other.sample(PROMPT, ASK))
        assert encode_token_ids(old.token_ids) == turn.completion_token_ids
        assert new.logprobs != old.logprobs
        for opened in (other, sampler, run):
            await opened.close()

    async def test_an_unknown_run_has_saved_nothing(self, service: TinkerService) -> None:
        assert await service.saved_paths("nothing") == ()


class TestMemoryTinker(ServiceContract):
    @pytest.fixture
    def service(self) -> TinkerService:
        return MemoryTinker(vocabulary=VOCABULARY)


class TestSkyRL(ServiceContract):
    @pytest.fixture
    def service(self, skyrl: str, base_model: Path) -> TinkerService:
        return SdkService(make_access(skyrl, base_model))


async def sample_from_new_run(service: TinkerService) -> tuple[TrainingRun, VersionSampler, TurnTokens]:
    """Return a new run, a sampler of its version, and a turn that this sampled."""
    run = await service.begin_run()
    sampler = await service.open_sampler(await run.save_state("start"))
    sampled = await sampler.sample(PROMPT, ASK)
    turn = TurnTokens(
        encode_token_ids(PROMPT), encode_token_ids(sampled.token_ids), encode_logprobs(sampled.logprobs), 0
    )
    return run, sampler, turn


async def pass_and_step(run: TrainingRun, sequence: LossSequence, loss: ServiceLoss) -> tuple[float, ...]:
    """Make one step; return the log-probs before it."""
    output = await run.forward_backward([sequence], loss)
    await run.optim_step(ADAM)
    return output.logprobs[0]


def make_trajectory(turn: TurnTokens) -> TrainTrajectory:
    return TrainTrajectory("t", "g", advantage=1.0, reward=1.0, turns=(turn,))
