"""Packed rows to an optimizer step: packing changes nothing, the same input gives the same bits, and it learns."""

from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from rollbus.schemas.errors import RejectedError
from rollbus.trainer.art_server.learner.rows import unpack
from rollbus.trainer.art_server.learner.update import Learner, micro_batches, score
from rollbus.trainer.art_server.model.config import read_config
from rollbus.trainer.art_server.sampler.requests import SamplingParameters
from rollbus.trainer.art_server.sampler.sampler import Sampler
from rollbus.trainer.backends.protocol import TrainConfig
from tests.models import load_model

CONFIG = TrainConfig(learning_rate=1e-3)
Row = list[tuple[int, int, list[int], int, int]]
"""Segments of a packed row: group, parent, token ids, position of the first, tokens sampled at the end."""


def packed_row(segments: Row, length: int, *, seed: int = 0) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    row = {
        "tokens": torch.zeros(1, length, dtype=torch.long),
        "group_ids": torch.full((1, length), -1),
        "parent_ids": torch.full((1, length), -1),
        "input_pos": torch.zeros(1, length, dtype=torch.long),
        "assistant_mask": torch.zeros(1, length, dtype=torch.bool),
        "logprobs": torch.full((1, length), torch.nan),
        "advantages": torch.zeros(1, length),
        "weights": torch.zeros(1, length),
    }
    at = 0
    for group, parent, token_ids, first, sampled in segments:
        end = at + len(token_ids)
        row["tokens"][0, at:end] = torch.tensor(token_ids)
        row["group_ids"][0, at:end], row["parent_ids"][0, at:end] = group, parent
        row["input_pos"][0, at:end] = torch.arange(first, first + len(token_ids))
        if sampled:
            row["assistant_mask"][0, end - sampled : end] = True
            row["logprobs"][0, end - sampled : end] = -5 - torch.rand(sampled, generator=generator)
            row["advantages"][0, end - sampled : end] = 1.0 if group % 2 else -1.0
            row["weights"][0, end - sampled : end] = 1.0
        at = end
    return row


PROMPT, LEFT, RIGHT, DEEPER = [5, 60, 61, 62], [63, 70, 71, 72], [63, 80, 81], [64, 90, 91]
SHARED: Row = [(0, 0, PROMPT, 0, 0), (1, 0, LEFT, 4, 3), (2, 0, RIGHT, 4, 2), (3, 2, DEEPER, 7, 2)]
SEPARATE: Row = [
    (1, 1, PROMPT + LEFT, 0, 3),
    (2, 2, PROMPT + RIGHT, 0, 2),
    (3, 3, PROMPT + RIGHT + DEEPER, 0, 2),
]


def logprobs_by_token(model: nn.Module, row: dict[str, Tensor]) -> dict[int, float]:
    """Log-prob of each sampled token, by its id: the ids of these rows are distinct where sampled."""
    found: dict[int, float] = {}
    for batch in micro_batches(unpack(row)):
        with torch.no_grad():
            scores = score(model, batch)
        found.update(zip(batch.targets_N.tolist(), scores.logprobs_N.tolist(), strict=True))
    return found


def test_a_batch_is_one_optimizer_step_however_many_trajectories_and_rows_it_has(base_model: Path) -> None:
    learner = Learner(read_config(base_model))
    learner.start_from(0, base_model)
    one, other = packed_row(SEPARATE, 64), packed_row(SHARED, 64, seed=1)
    learner.step({name: torch.cat([one[name], other[name]]) for name in one}, CONFIG)
    assert {float(state["step"]) for state in learner.optimizer.state.values()} == {1.0}


def test_sequences_that_share_little_need_no_mask() -> None:
    trees = unpack(packed_row(SEPARATE, 64))
    assert [len(tree) for tree in trees] == [6, 7, 9]  # each without its last token, which nothing follows
    (batch,) = micro_batches(trees)
    assert batch.mask() is None


def test_what_sequences_share_is_computed_once_wherever_they_are_packed() -> None:
    beginning = list(range(100, 120))
    rows = [packed_row([(0, 0, [*beginning, *own], 0, 2)], 32) for own in ([1, 2, 3], [4, 5, 6], [1, 2, 9])]
    (tree,) = unpack({name: torch.cat([row[name] for row in rows]) for name in rows[0]})
    assert tree.token_ids_T.tolist() == [*beginning, 1, 2, 4, 5]
    assert tree.positions_T.tolist() == [*range(22), 20, 21]
    assert tree.columns_N.tolist() == [20, 21, 20, 21, 22, 23]
    assert tree.samples["target"].tolist() == [2, 3, 2, 9, 5, 6]
    assert tree.samples["sequence"].tolist() == [0, 0, 2, 2, 1, 1]
    (batch,) = micro_batches([tree])
    mask_B_T_T = batch.mask()
    assert mask_B_T_T is not None
    assert mask_B_T_T[0, 23].tolist() == [True] * 20 + [False, False, True, True]
    assert mask_B_T_T[0, 21].tolist() == [True] * 22 + [False, False]


def test_padding_beside_a_tree_longer_than_the_context_has_positions_that_the_model_has() -> None:
    beginning = list(range(100, 120))
    rows = [packed_row([(0, 0, [*beginning, own, 1, 2], 0, 2)], 32) for own in range(20)]
    rows += [packed_row([(0, 0, [*range(200, 220), own, 1, 2], 0, 2)], 32) for own in range(2)]
    (batch,) = micro_batches(unpack({name: torch.cat([row[name] for row in rows]) for name in rows[0]}))
    assert batch.token_ids_B_T.shape == (2, 20 + 2 * 20)
    assert int(batch.positions_B_T.max()) == 21


def test_a_tree_has_a_bound_since_attention_takes_every_pair() -> None:
    beginning = list(range(100, 300))
    rows = [packed_row([(0, 0, [*beginning, *[own] * 100], 0, 2)], 300) for own in range(10)]
    trees = unpack({name: torch.cat([row[name] for row in rows]) for name in rows[0]})
    assert sum(len(tree.columns_N) for tree in trees) == 20
    assert [len(tree) for tree in trees] == [398, 992]


def test_long_sequences_join_a_tree_only_where_that_saves_more_than_its_pairs_cost() -> None:
    for shared, expected in ((100, [900]), (16, [416, 416])):
        beginning = list(range(100, 100 + shared))
        rows = [packed_row([(0, 0, [*beginning, *[own] * 101], 0, 2)], 256) for own in range(8)]
        assert [len(tree) for tree in unpack({name: torch.cat([row[name] for row in rows]) for name in rows[0]})] == (
            expected
        )


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
    row = packed_row([(0, 0, prompt, 0, 0), *((n, 0, [n, *sampled], length, length) for n in (1, 2))], 4 * length)
    (batch,) = micro_batches(unpack(row))
    mask_B_T_T = batch.mask()
    assert mask_B_T_T is not None
    assert mask_B_T_T.nbytes == (3 * length) ** 2
    assert held(batch) < mask_B_T_T.nbytes / 10


def learner(base_model: Path) -> Learner:
    one = Learner(read_config(base_model))
    one.start_from(0, base_model)
    return one


def weights(one: Learner) -> list[Tensor]:
    return [parameter.detach().clone() for parameter in one.model.parameters()]


def same(first: list[Tensor], second: list[Tensor]) -> bool:
    return all(torch.equal(one, two) for one, two in zip(first, second, strict=True))


def test_positive_advantages_raise_and_negative_ones_lower_log_probs(base_model: Path) -> None:
    one, row = learner(base_model), packed_row(SEPARATE, 64)
    before = logprobs_by_token(one.model, row)
    one.step(row, CONFIG)
    after = logprobs_by_token(one.model, row)
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
    row = packed_row(SEPARATE, 64)
    row["logprobs"] += 4.0
    for _ in range(2):  # the reference equals the current weights at the first step
        plain.step(row, CONFIG)
        report = other.step(row, CONFIG.model_copy(update=changed), reference=base_model)
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
    row = packed_row(SEPARATE, 64)
    sampled = row["assistant_mask"]
    row["logprobs"][sampled] += torch.linspace(-3, 4, int(sampled.sum()))
    row["advantages"] *= sign
    config = CONFIG.model_copy(update={"loss": loss})
    norms = [learner(base_model).step(row, each)["grad_norm"] for each in (config, config.model_copy(update=changed))]
    assert norms[0] != norms[1]


def test_a_penalty_does_not_change_which_sequences_are_stale(base_model: Path) -> None:
    row, reports = packed_row(SEPARATE, 64), []
    row["logprobs"] += 4.5
    row["advantages"] *= 0.01
    for coefficient in (0.0, 10.0):
        one = learner(base_model)
        one.step(packed_row(SHARED, 32), CONFIG.model_copy(update={"learning_rate": 1e-2}))  # away from the reference
        config = CONFIG.model_copy(update={"off_policy_mask_threshold": 0.5, "kl_coefficient": coefficient})
        reports.append(one.step(row, config, reference=base_model))
    assert reports[0]["stale_mask_fraction"] == reports[1]["stale_mask_fraction"] > 0


def test_a_penalty_without_its_reference_is_refused(base_model: Path) -> None:
    with pytest.raises(RejectedError, match=r"kl_coefficient 0\.1 needs the weights of version 0"):
        learner(base_model).step(packed_row(SHARED, 32), CONFIG.model_copy(update={"kl_coefficient": 0.1}))


def test_a_gradient_is_clipped_to_its_bound_and_reported_as_it_was(base_model: Path) -> None:
    """AdamW's first moment after one step is (1 - beta1) times the gradient that it was given."""
    moments = []
    for bound in (1e9, 0.01):
        one = learner(base_model)
        report = one.step(packed_row(SHARED, 32), CONFIG.model_copy(update={"max_grad_norm": bound}))
        given = torch.cat([state["exp_avg"].flatten() for state in one.optimizer.state.values()]) / (1 - 0.9)
        moments.append((report["grad_norm"], float(given.norm())))
    (norm, unclipped), (reported, clipped) = moments
    assert norm == reported
    assert unclipped == pytest.approx(norm, rel=1e-4)
    assert clipped == pytest.approx(0.01, rel=1e-3)


def test_a_broken_row_is_refused() -> None:
    with pytest.raises(RejectedError, match="no token before it"):
        unpack(packed_row([(0, 0, [5, 6], 0, 2)], 8))


def test_a_two_answer_bandit_is_solved_within_a_hundred_steps(base_model: Path, tokenizer: Any) -> None:
    """Sampler and trainer together: the answer `good` pays 1, every other 0."""
    one = learner(base_model)
    good, prompt = tokenizer.encode("7")[0], tokenizer.encode("choose")
    sampler = Sampler(one.config, tokenizer, max_rows=32, keep_versions=1)
    share = 0.0
    try:
        for step in range(100):
            serving, _ = load_model(base_model)
            serving.load_state_dict(one.model.state_dict())
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
            one.step(bandit_rows(prompt, answers, rewards, share), TrainConfig(learning_rate=1e-2))
    finally:
        sampler.close()
    assert share > 0.9


def bandit_rows(prompt: list[int], answers: list[Any], rewards: list[float], mean: float) -> dict[str, Tensor]:
    rows = []
    for answer, reward in zip(answers, rewards, strict=True):
        row = packed_row([(0, 0, [*prompt, *answer.token_ids], 0, 1)], len(prompt) + 1)
        row["logprobs"][0, -1] = answer.logprobs[0]
        row["advantages"][0, -1] = reward - mean if mean else 0.001
        rows.append(row)
    return {name: torch.cat([row[name] for row in rows]) for name in rows[0]}
