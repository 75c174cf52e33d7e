"""However the same answers are ordered, and whatever they share, the update takes the same gradient from them."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from rollbus.trainer.art_server.learner.update import Learner, micro_batches, score
from rollbus.trainer.art_server.model.model import build_model, initialize
from rollbus.trainer.backends.sequences import TokenSequence
from rollbus.trainer.train_config import TrainConfig
from tests.sequences import make_sequence
from tests.trainer.art_server.conftest import SMALL

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


def sequences_of(given_answers: Answers) -> list[TokenSequence]:
    """One sequence for each answer but for its first token, which its prompt ends with.

    Log-probs depend on the token alone, and advantages on all that was sampled.
    """
    return [
        make_sequence(
            [*prompt, first],
            sampled,
            logprobs=[-5.5 + math.sin(token) for token in sampled],
            advantage=math.cos(sum(sampled) * 1.7),
        )
        for prompt, group in given_answers
        for first, *sampled in group
    ]


def gradient_apart(sequences: list[TokenSequence]) -> Tensor:
    """The gradient where no two sequences share anything."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("rollbus.trainer.art_server.learner.rows.SHARED_TOKENS", 10**9)
        return gradient(sequences)


def gradient(sequences: list[TokenSequence], config: TrainConfig = WIDE_OPEN) -> Tensor:
    """Every weight's gradient, read from the first moment that AdamW keeps of it."""
    learner = Learner(SMALL)
    initialize(learner.model, seed=3)
    learner.step(sequences, config)
    moments = [learner.optimizer.state[weight]["exp_avg"].flatten() for weight in learner.model.parameters()]
    return torch.cat(moments) / (1 - WIDE_OPEN.adam_beta1)


def assert_same(first: Tensor, second: Tensor) -> None:
    assert float(first.abs().max()) > 1e-3
    torch.testing.assert_close(first, second, rtol=2e-4, atol=2e-6)


@settings(max_examples=25)
@given(answers)
def test_sequences_that_share_a_beginning_give_the_gradient_of_separate_ones(given_answers: Answers) -> None:
    assert_same(gradient(sequences_of(given_answers)), gradient_apart(sequences_of(given_answers)))


@settings(max_examples=25)
@given(answers)
def test_padding_gives_no_gradient(given_answers: Answers) -> None:
    sequences = sequences_of(given_answers)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("rollbus.trainer.art_server.learner.update.PADDED_TOKENS", 1)
        unpadded = gradient(sequences)
    assert_same(gradient(sequences), unpadded)


@settings(max_examples=25)
@given(answers, st.randoms())
def test_the_order_of_sequences_does_not_matter(given_answers: Answers, random: Any) -> None:
    sequences = sequences_of(given_answers)
    shuffled = list(sequences)
    random.shuffle(shuffled)
    assert_same(gradient(sequences), gradient(shuffled))


@pytest.mark.parametrize(("bound", "value"), [("PADDED_TOKENS", 6), ("HEAD_ROWS", 2)])
def test_micro_batches_and_softmax_chunks_keep_the_gradient(
    bound: str, value: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    sequences = sequences_of([([5, 6, 7], [[8, 9, 10], [11, 12]]), ([13], [[14, 15, 16, 17], [18, 19]])])
    whole = gradient(sequences)
    monkeypatch.setattr(f"rollbus.trainer.art_server.learner.update.{bound}", value)
    assert_same(whole, gradient(sequences))


def test_no_logits_are_kept_for_the_backward_pass() -> None:
    """They have the vocabulary as an axis, so they would outgrow all else that an update holds."""
    model = build_model(SMALL)
    initialize(model, seed=1)
    (batch,) = micro_batches(sequences_of([([5, 6, 7], [[8, 9, 10], [11, 12]])]))
    saved_shapes: list[tuple[int, ...]] = []

    def keep(tensor: Tensor) -> Tensor:
        saved_shapes.append(tuple(tensor.shape))
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        score(model, batch, entropy_gradient=True)
    assert saved_shapes
    assert [shape for shape in saved_shapes if shape[-1:] == (SMALL.vocabulary,)] == []
