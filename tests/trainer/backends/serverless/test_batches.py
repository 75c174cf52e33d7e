"""What is sent is what ART's own backend sends, with the recorded tokens; all else is refused by name."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rollbus.schemas.errors import UnavailableError
from rollbus.trainer.backends.protocol import TrainRequest
from rollbus.trainer.backends.serverless.batches import find_unsupported_settings, make_job_config
from rollbus.trainer.train_config import Distillation, TrainConfig
from tests.contracts.backend import make_request, submit_and_wait
from tests.trainer.backends.serverless.scene import ServerlessScene, make_art_request


@pytest.mark.parametrize(
    ("settings", "refused"),
    [
        ({"advantages": "given"}, "advantages: given"),
        ({"loss": "dppo"}, "loss: dppo"),
        ({"loss": "ppo", "dual_clip": 2.0}, "dual_clip"),
        ({"weight_decay": 0.1, "max_grad_norm": 0.5}, "max_grad_norm, weight_decay"),
        ({"adam_beta1": 0.8, "adam_beta2": 0.9}, "adam_beta1, adam_beta2"),
        ({"entropy_bonus": 0.1}, "entropy_bonus"),
        ({"importance_correction": "token_mask"}, "importance_correction: token_mask"),
        ({"kl_coefficient": 0.1, "kl_estimator": "k3"}, "kl_estimator: k3"),
        ({"advantages": "given", "distill": Distillation()}, "distill, advantages: given"),
        (
            {"advantages": "given", "aggregation": "constant", "aggregation_tokens": 9},
            "aggregation: constant, advantages: given",
        ),
    ],
)
async def test_an_unsupported_setting_is_refused_before_a_job_is_sent(
    tmp_path: Path, settings: dict[str, Any], refused: str
) -> None:
    config = TrainConfig.model_validate({"advantages": "art", **settings})
    assert ", ".join(find_unsupported_settings(config)).startswith(refused)
    async with ServerlessScene(tmp_path).serve() as scene:
        backend = await scene.start()
        with pytest.raises(UnavailableError, match=refused):
            await submit_and_wait(backend, replace(make_request(0), config=config))
        assert (len(scene.service.jobs), (await backend.versions()).head) == (0, 0)
        await backend.close()


async def test_advantages_of_turns_are_refused_by_name(tmp_path: Path) -> None:
    request = make_art_request(0)
    first, second = request.trajectories
    with_own = replace(first, turns=tuple(replace(turn, advantage=0.5) for turn in first.turns))
    message = "advantages of turns or tokens, which 1 of 2 trajectories have"
    await require_refusal(tmp_path, replace(request, trajectories=(with_own, second)), message)


async def test_single_attempts_are_refused_by_name(tmp_path: Path) -> None:
    request = make_art_request(0, rewards=(0.0, 1.0, 0.0, 1.0))
    alone = tuple(replace(member, group_id=member.trajectory_id) for member in request.trajectories)
    await require_refusal(tmp_path, replace(request, trajectories=alone), "single attempts")


async def test_a_member_that_is_left_alone_in_its_group_has_no_signal(tmp_path: Path) -> None:
    request = make_art_request(0, rewards=(0.0, 1.0, 0.5))
    *others, last = request.trajectories
    async with ServerlessScene(tmp_path).serve() as scene:
        backend = await scene.start()
        await submit_and_wait(backend, replace(request, trajectories=(*others, replace(last, group_id="h"))))
        result = await backend.wait(request.batch_hash)
        assert (result.trained_ids, dict(result.dropped)) == (("t0", "t1"), {"t2": "no_signal"})
        await backend.close()


async def test_a_turn_at_another_temperature_is_dropped(tmp_path: Path) -> None:
    request = make_art_request(0, rewards=(0.0, 1.0, 0.5))
    first, *others = request.trajectories
    warm = replace(first, turns=tuple(replace(turn, temperature=0.7) for turn in first.turns))
    async with ServerlessScene(tmp_path).serve() as scene:
        backend = await scene.start()
        await submit_and_wait(backend, replace(request, trajectories=(warm, *others)))
        assert dict((await backend.wait(request.batch_hash)).dropped) == {"t0": "temperature"}
        await backend.close()


async def test_recorded_tokens_and_log_probs_arrive_as_they_are(tmp_path: Path) -> None:
    async with ServerlessScene(tmp_path).serve() as scene:
        backend = await scene.start()
        await submit_and_wait(backend, make_art_request(0))
        (group,) = scene.service.jobs["job-1"].groups
        assert [trajectory.reward for trajectory in group.trajectories] == [0.0, 1.0]
        choices: list[Any] = [trajectory.messages_and_choices[0] for trajectory in group.trajectories]  # as dicts
        assert [(choice["prompt_token_ids"], choice["token_ids"]) for choice in choices] == [
            ([3, 4, 5], [6, 7]),
            ([3, 4, 5], [7, 7]),
        ]
        assert {tuple(choice["art_completion_logprobs"]) for choice in choices} == {(-1.5, -1.5)}
        await backend.close()


@pytest.mark.parametrize(
    "config",
    [
        TrainConfig(advantages="art", learning_rate=3e-5),
        TrainConfig(advantages="art", loss="ppo", epsilon=0.1, epsilon_high=0.3, ratio_level="sequence"),
        TrainConfig(advantages="art", importance_correction="token_truncate", importance_cap=3.0),
        TrainConfig(advantages="art", kl_coefficient=0.1, kl_reference_version=2),
    ],
)
async def test_a_job_is_configured_as_arts_own_backend_configures_it(tmp_path: Path, config: TrainConfig) -> None:
    """ART's own backend is also a second client of the fake: it runs a job there to its end."""
    import art
    from art.serverless import ServerlessBackend as ArtServerlessBackend

    from rollbus.trainer.backends.art_terms.groups import art_groups
    from rollbus.trainer.backends.art_terms.update import make_update_arguments

    async with ServerlessScene(tmp_path).serve() as scene:
        model: art.TrainableModel[Any, Any] = art.TrainableModel(
            name="agent-2", run_name="agent-2", project="tickets", base_model="OpenPipe/Qwen3-14B-Instruct"
        )
        arts_own = ArtServerlessBackend(api_key="key", base_url=scene.url)
        await arts_own.register(model)
        trajectories = make_art_request(0).trajectories
        trained = await arts_own.train(
            model, art_groups(trajectories), **make_update_arguments(config), kl_penalty_source="current_learner"
        )
        await arts_own.close()
        assert trained.step == 1
        sent = scene.service.jobs["job-1"].config
        ours = make_job_config(config)
        assert {name: sent[name] for name in ours} == ours
        left_out = {name: value for name, value in sent.items() if name not in ours and value is not None}
        assert left_out == ARTS_DEFAULTS


ARTS_DEFAULTS = {
    "logprob_calculation_chunk_size": 1024,
    "num_trajectories_learning_rate_multiplier_power": 0.0,
    "plot_tensors": False,
    "scale_learning_rate_by_reward_std_dev": False,
}
"""What ART's own backend always sends besides: how a device computes, and what is off."""


async def require_refusal(folder: Path, request: TrainRequest, message: str) -> None:
    """Submit a batch that must be refused, with nothing sent."""
    async with ServerlessScene(folder).serve() as scene:
        backend = await scene.start()
        with pytest.raises(UnavailableError, match=message):
            await submit_and_wait(backend, request)
        assert not scene.service.jobs
        await backend.close()
