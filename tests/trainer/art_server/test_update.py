"""Sequences to an optimizer step: what they share is computed once, the same input gives the same bits, it learns."""

from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from rollbus.schemas.errors import RejectedError
from rollbus.trainer.art_server.learner.rows import grow_trees
from rollbus.trainer.art_server.learner.update import Learner, micro_batches, score
from rollbus.trainer.art_server.model.config import read_config
from rollbus.trainer.art_server.sampler.requests import SamplingParameters
from rollbus.trainer.art_server.sampler.sampler import Sampler
from rollbus.trainer.backends.sequences import TokenSequence
from rollbus.trainer.train_config import TrainConfig
from tests.models import load_model
from tests.sequences import make_sequence, three_answers

CONFIG = TrainConfig(learning_rate=1e-3)


def logprobs_by_token(model: nn.Module, sequences: list[TokenSequence]) -> dict[int, float]:
    """Log-prob of each sampled token, by its id: these are distinct where sampled."""
    logprob_by_token: dict[int, float] = {}
    for batch in micro_batches(sequences):
        with torch.no_grad():
            scores = score(model, batch)
        logprob_by_token.update(zip(batch.targets_N.tolist(), scores.logprobs_N.tolist(), strict=True))
    return logprob_by_token


def test_a_batch_is_one_optimizer_step_however_many_sequences_it_has(base_model: Path) -> None:
    learner = Learner(read_config(base_model))
    learner.start_from(0, base_model)
    learner.step([*three_answers(), *three_answers(seed=1)], CONFIG)
    assert {float(state["step"]) for state in learner.optimizer.state.values()} == {1.0}


def test_sequences_that_share_little_need_no_mask() -> None:
    trees = grow_trees(three_answers())
    assert [len(tree) for tree in trees] == [6, 7, 9]  # each without its last token, which nothing follows
    (batch,) = micro_batches(three_answers())
    assert batch.mask() is None


def test_a_shared_beginning_is_computed_once_anywhere_in_the_batch() -> None:
    beginning = list(range(100, 120))
    ends = (1, [2, 3]), (4, [5, 6]), (1, [2, 9])
    sequences = [make_sequence([*beginning, first], sampled) for first, sampled in ends]
    (tree,) = grow_trees(sequences)
    assert tree.token_ids_T.tolist() == [*beginning, 1, 2, 4, 5]
    assert tree.positions_T.tolist() == [*range(22), 20, 21]
    assert tree.columns_N.tolist() == [20, 21, 20, 21, 22, 23]
    assert tree.samples["target"].tolist() == [2, 3, 2, 9, 5, 6]
    assert tree.samples["sequence"].tolist() == [0, 0, 2, 2, 1, 1]
    (batch,) = micro_batches(sequences)
    mask_B_T_T = batch.mask()
    assert mask_B_T_T is not None
    assert mask_B_T_T[0, 23].tolist() == [True] * 20 + [False, False, True, True]
    assert mask_B_T_T[0, 21].tolist() == [True] * 22 + [False, False]


def test_padding_beside_a_long_tree_has_positions_within_the_context() -> None:
    beginning = list(range(100, 120))
    sequences = [make_sequence([*beginning, own], [1, 2]) for own in range(20)]
    sequences += [make_sequence([*range(200, 220), own], [1, 2]) for own in range(2)]
    (batch,) = micro_batches(sequences)
    assert batch.token_ids_B_T.shape == (2, 20 + 2 * 20)
    assert int(batch.positions_B_T.max()) == 21


def test_a_tree_has_a_bound_since_attention_takes_every_pair() -> None:
    beginning = list(range(100, 300))
    trees = grow_trees([make_sequence([*beginning, *[own] * 98], [own] * 2) for own in range(10)])
    assert sum(len(tree.columns_N) for tree in trees) == 20
    assert [len(tree) for tree in trees] == [398, 992]


def test_long_sequences_join_a_tree_only_if_it_saves_computation() -> None:
    for shared, expected in ((100, [900]), (16, [416, 416])):
        beginning = list(range(100, 100 + shared))
        sequences = [make_sequence([*beginning, *[own] * 99], [own] * 2) for own in range(8)]
        assert [len(tree) for tree in grow_trees(sequences)] == expected


def held(value: Any) -> int:
    """Bytes of all tensors in it."""
    if isinstance(value, Tensor):
        return value.nbytes
    if is_dataclass(value):
        return sum(held(getattr(value, field.name)) for field in fields(value))
    return sum(map(held, value)) if isinstance(value, list | tuple) else 0


def test_a_step_holds_no_masks_but_those_of_the_pass_in_work() -> None:
    """They grow with the square of a row's length, and a step has many."""
    length = 1000
    prompt, sampled = list(range(length)), [1] * length
    (batch,) = micro_batches([make_sequence([*prompt, number], sampled) for number in (1, 2)])
    mask_B_T_T = batch.mask()
    assert mask_B_T_T is not None
    assert mask_B_T_T.nbytes == (3 * length) ** 2
    assert held(batch) < mask_B_T_T.nbytes / 10


def learner(base_model: Path) -> Learner:
    trained_learner = Learner(read_config(base_model))
    trained_learner.start_from(0, base_model)
    return trained_learner


def weights(trained_learner: Learner) -> list[Tensor]:
    return [parameter.detach().clone() for parameter in trained_learner.model.parameters()]


def same(first: list[Tensor], second: list[Tensor]) -> bool:
    return all(torch.equal(tensor, other_tensor) for tensor, other_tensor in zip(first, second, strict=True))


def test_positive_advantages_raise_and_negative_ones_lower_log_probs(base_model: Path) -> None:
    trained_learner, sequences = learner(base_model), three_answers()
    before = logprobs_by_token(trained_learner.model, sequences)
    trained_learner.step(sequences, CONFIG)
    after = logprobs_by_token(trained_learner.model, sequences)
    assert all(after[token] > before[token] for token in (70, 71, 72, 90, 91))
    assert all(after[token] < before[token] for token in (80, 81))


@pytest.mark.parametrize(
    "changed",
    [
        {"loss": "ppo"},
        {"kl_coefficient": 0.1},
        {"kl_coefficient": 0.1, "kl_estimator": "k3"},
        {"entropy_bonus": 0.05},
        {"off_policy_mask_threshold": 0.5},
        {"loss": "dppo"},
        {"ratio_level": "sequence"},
        {"importance_correction": "token_truncate", "importance_cap": 0.01},
        {"importance_correction": "sequence_truncate", "loss": "ppo"},
        {"behaviour_kl_coefficient": 1e-2},
        {"aggregation": "constant", "aggregation_tokens": 100},
        {"learning_rate": 2e-3},
        {"ratio_max": 1e-3},
        {"ratio_min": 3.0},
        {"weight_decay": 0.1},
        {"adam_beta1": 0.5},
        {"adam_beta2": 0.5},
        {"max_grad_norm": 1e-9},
    ],
    ids=lambda changed: ", ".join(map(str, changed.items())),
)
def test_every_option_reaches_the_update(base_model: Path, changed: dict[str, Any]) -> None:
    plain, other = learner(base_model), learner(base_model)
    sequences = three_answers(shifts=[4.0] * 7)
    for _ in range(2):  # the reference equals the current weights at the first step
        plain.step(sequences, CONFIG)
        report = other.step(sequences, CONFIG.model_copy(update=changed), reference=base_model)
    assert not same(weights(plain), weights(other))
    assert report["grad_norm"] > 0


@pytest.mark.parametrize(
    ("loss", "sign", "changed"),
    [
        ("ppo", 1, {"epsilon": 0.9}),
        ("ppo", 1, {"epsilon_high": 30.0}),
        ("ppo", -1, {"dual_clip": None}),
        ("dppo", 1, {"probability_delta": 1e-9}),
        ("cispo", 1, {"off_policy_mask_threshold": 0.5}),
    ],
)
def test_every_bound_of_a_loss_reaches_it(base_model: Path, loss: Any, sign: int, changed: dict[str, Any]) -> None:
    """On tokens that have become likelier since they were sampled, then on some that have become rarer."""
    sequences = three_answers(shifts=torch.linspace(-3, 4, 7).tolist(), scale=sign)
    configs = CONFIG.model_copy(update={"loss": loss}), CONFIG.model_copy(update={"loss": loss, **changed})
    norms = [learner(base_model).step(sequences, config)["grad_norm"] for config in configs]
    assert norms[0] != norms[1]


def test_a_penalty_does_not_change_which_sequences_are_stale(base_model: Path) -> None:
    sequences, reports = three_answers(shifts=[4.5] * 7, scale=0.01), []
    for coefficient in (0.0, 10.0):
        trained_learner = learner(base_model)
        trained_learner.step(
            three_answers(), CONFIG.model_copy(update={"learning_rate": 1e-2})
        )  # away from the reference
        config = CONFIG.model_copy(update={"off_policy_mask_threshold": 0.5, "kl_coefficient": coefficient})
        reports.append(trained_learner.step(sequences, config, reference=base_model))
    assert reports[0]["stale_mask_fraction"] == reports[1]["stale_mask_fraction"] > 0


def test_a_penalty_without_its_reference_is_refused(base_model: Path) -> None:
    with pytest.raises(RejectedError, match=r"kl_coefficient 0\.1 needs the weights of version 0"):
        learner(base_model).step(three_answers(), CONFIG.model_copy(update={"kl_coefficient": 0.1}))


def test_a_gradient_is_clipped_to_its_bound_and_reported_as_it_was(base_model: Path) -> None:
    """AdamW's first moment after one step is (1 - beta1) times the gradient that it was given."""
    moments = []
    for bound in (1e9, 0.01):
        trained_learner = learner(base_model)
        report = trained_learner.step(three_answers(), CONFIG.model_copy(update={"max_grad_norm": bound}))
        first_moment = torch.cat([state["exp_avg"].flatten() for state in trained_learner.optimizer.state.values()]) / (
            1 - 0.9
        )
        moments.append((report["grad_norm"], float(first_moment.norm())))
    (norm, unclipped), (reported, clipped) = moments
    assert norm == reported
    assert unclipped == pytest.approx(norm, rel=1e-4)
    assert clipped == pytest.approx(0.01, rel=1e-3)


def test_a_turn_without_a_prompt_is_refused() -> None:
    with pytest.raises(RejectedError, match="no token before its first"):
        grow_trees([make_sequence([], [5, 6])])


def test_a_batch_without_sequences_is_refused(base_model: Path) -> None:
    with pytest.raises(RejectedError, match="no sampled token"):
        learner(base_model).step([], CONFIG)


def test_a_two_answer_bandit_is_solved_within_a_hundred_steps(base_model: Path, tokenizer: Any) -> None:
    """Sampler and trainer together: the answer `good` pays 1, every other 0."""
    trained_learner = learner(base_model)
    good, prompt = tokenizer.encode("7")[0], tokenizer.encode("choose")
    sampler = Sampler(trained_learner.config, tokenizer, max_rows=32, keep_versions=1)
    share = 0.0
    try:
        for step in range(100):
            serving, _ = load_model(base_model)
            serving.load_state_dict(trained_learner.model.state_dict())
            sampler.load(step, serving)
            futures = [
                sampler.submit(prompt, SamplingParameters(max_tokens=1, seed=step * 64 + i, temperature=1.0), step)
                for i in range(64)
            ]
            answers = [future.result(timeout=120) for future in futures]
            rewards = [float(answer.token_ids[0] == good) for answer in answers]
            share = sum(rewards) / len(rewards)
            if share > 0.9:
                break
            advantages = [reward - share if share else 0.001 for reward in rewards]
            sequences = [
                make_sequence(prompt, answer.token_ids, advantage=advantage, logprobs=answer.logprobs)
                for answer, advantage in zip(answers, advantages, strict=True)
            ]
            trained_learner.step(sequences, TrainConfig(learning_rate=1e-2))
    finally:
        sampler.close()
    assert share > 0.9
