"""However the same answers are packed, padded and ordered, the update takes the same gradient from them."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from rollbus.schemas.errors import RejectedError
from rollbus.trainer.art_server.learner.rows import unpack
from rollbus.trainer.art_server.learner.update import Learner, micro_batches, score
from rollbus.trainer.art_server.model.model import build_model, initialize
from rollbus.trainer.backends.protocol import TrainConfig
from tests.trainer.art_server.conftest import SMALL
from tests.trainer.art_server.test_update import packed_row

WIDE_OPEN = TrainConfig(learning_rate=1e-9, max_grad_norm=1e9)
"""Leaves gradients as they are, and the weights nearly."""
Answers = list[tuple[list[int], list[list[int]]]]
"""Prompts, each with the answers to it."""

BEGINNING = list(range(5, 25))
"""Long enough that the update computes it once for all prompts that begin with it."""

ids = st.integers(5, 200)
prompts = st.lists(ids, min_size=1, max_size=5)
answers = st.lists(
    st.tuples(
        prompts | prompts.map(lambda prompt: [*BEGINNING, *prompt]),
        st.lists(st.lists(ids, min_size=2, max_size=5), min_size=1, max_size=3),
    ),
    min_size=1,
    max_size=3,
)


def shared(given_answers: Answers, *, padding: int = 0) -> dict[str, Tensor]:
    """One packed row, in which the answers to a prompt share it."""
    segments: Any = []
    for prompt, group in given_answers:
        root = len(segments)
        segments.append((root, root, prompt, 0, 0))
        for answer in group:
            segments.append((len(segments), root, answer, len(prompt), len(answer) - 1))
    return filled(packed_row(segments, sum(len(segment[2]) for segment in segments) + padding))


def separate(given_answers: Answers, order: list[int] | None = None) -> dict[str, Tensor]:
    """A row for each answer, its prompt before it."""
    whole = [(prompt, answer) for prompt, group in given_answers for answer in group]
    length = max(len(prompt) + len(answer) for prompt, answer in whole)
    rows = [
        filled(packed_row([(0, 0, [*prompt, *answer], 0, len(answer) - 1)], length))
        for prompt, answer in (whole if order is None else [whole[index] for index in order])
    ]
    return {name: torch.cat([row[name] for row in rows]) for name in rows[0]}


def filled(row: dict[str, Tensor]) -> dict[str, Tensor]:
    """Log-probs and advantages that depend on the token alone, so that they are the same in every packing."""
    sampled, tokens = row["assistant_mask"], row["tokens"].float()
    row["logprobs"] = torch.where(sampled, -5.5 + torch.sin(tokens), torch.nan)
    row["advantages"] = torch.where(sampled, torch.cos(tokens * 1.7), 0.0)
    return row


def gradient_apart(row: dict[str, Tensor]) -> Tensor:
    """The gradient where no two sequences share anything."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("rollbus.trainer.art_server.learner.rows.SHARED_TOKENS", 10**9)
        return gradient(row)


def gradient(row: dict[str, Tensor], config: TrainConfig = WIDE_OPEN) -> Tensor:
    """Every weight's gradient, read from the first moment that AdamW keeps of it."""
    learner = Learner(SMALL)
    initialize(learner.model, seed=3)
    learner.step(row, config)
    moments = [learner.optimizer.state[weight]["exp_avg"].flatten() for weight in learner.model.parameters()]
    return torch.cat(moments) / (1 - WIDE_OPEN.adam_beta1)


def assert_same(first: Tensor, second: Tensor) -> None:
    assert float(first.abs().max()) > 1e-3
    torch.testing.assert_close(first, second, rtol=2e-4, atol=2e-6)


@settings(max_examples=25)
@given(answers)
def test_packed_rows_with_shared_prompts_give_the_gradient_of_separate_ones(given_answers: Answers) -> None:
    assert_same(gradient(shared(given_answers)), gradient_apart(separate(given_answers)))


@settings(max_examples=25)
@given(answers, st.integers(1, 9))
def test_padding_gives_no_gradient(given_answers: Answers, padding: int) -> None:
    assert_same(gradient(shared(given_answers)), gradient(shared(given_answers, padding=padding)))


@settings(max_examples=25)
@given(answers, st.randoms())
def test_the_order_of_rows_does_not_matter(given_answers: Answers, random: Any) -> None:
    order = list(range(sum(len(group) for _, group in given_answers)))
    random.shuffle(order)
    assert_same(gradient(separate(given_answers)), gradient(separate(given_answers, order)))


@pytest.mark.parametrize("aggregation", ["token_mean", "constant"])
def test_a_token_without_a_log_prob_counts_for_nothing(aggregation: Any) -> None:
    """Neither in the sum nor in what it is divided by."""
    config = WIDE_OPEN.model_copy(update={"aggregation": aggregation, "aggregation_tokens": 4})
    rows = separate([([5, 6, 7], [[8, 9, 10], [11, 12]]), ([13], [[14, 15, 16, 17]])])
    lacking = {name: value.clone() for name, value in rows.items()}
    for position in ((0, 4), (1, 4)):  # of two answers, the second one's only token
        lacking["logprobs"][position] = torch.nan
        rows["assistant_mask"][position] = False
    assert_same(gradient(rows, config), gradient(lacking, config))


def test_a_batch_without_any_log_prob_is_refused() -> None:
    rows = separate([([5, 6, 7], [[8, 9, 10]])])
    rows["logprobs"][:] = torch.nan
    with pytest.raises(RejectedError, match="no sampled token"):
        gradient(rows)


@pytest.mark.parametrize(("bound", "value"), [("PADDED_TOKENS", 6), ("HEAD_ROWS", 2)])
def test_micro_batches_and_a_softmax_in_chunks_give_the_gradient_of_the_whole(
    bound: str, value: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = separate([([5, 6, 7], [[8, 9, 10], [11, 12]]), ([13], [[14, 15, 16, 17], [18, 19]])])
    whole = gradient(rows)
    monkeypatch.setattr(f"rollbus.trainer.art_server.learner.update.{bound}", value)
    assert_same(whole, gradient(rows))


def test_no_logits_are_kept_for_the_backward_pass() -> None:
    """They have the vocabulary as an axis, so they would outgrow all else that an update holds."""
    model = build_model(SMALL)
    initialize(model, seed=1)
    (batch,) = micro_batches(unpack(separate([([5, 6, 7], [[8, 9, 10], [11, 12]])])))
    kept: list[tuple[int, ...]] = []

    def keep(tensor: Tensor) -> Tensor:
        kept.append(tuple(tensor.shape))
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        score(model, batch, entropy_gradient=True)
    assert kept
    assert [shape for shape in kept if shape[-1:] == (SMALL.vocabulary,)] == []
