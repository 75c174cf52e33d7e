"""What requests share is read once, and no answer changes by it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rollbus.trainer.art_server.model.config import read_config
from rollbus.trainer.art_server.model.model import head, trunk
from rollbus.trainer.art_server.sampler.prefixes import BLOCK_TOKENS, PrefixIndex, Shared
from rollbus.trainer.art_server.sampler.requests import Generation, SamplingParameters
from rollbus.trainer.art_server.sampler.sampler import Sampler
from tests.models import load_model

SYSTEM = [5 + number % 200 for number in range(40)]
QUESTIONS = [[7 * number % 300, 11, 12 + number] for number in range(6)]


@pytest.fixture
def sampler(base_model: Path, tokenizer: Any) -> Iterator[Sampler]:
    made = Sampler(read_config(base_model), tokenizer, max_rows=4)
    made.load(0, load_model(base_model)[0])
    yield made
    made.close()


def ask(sampler: Sampler, *prompts: list[int], version: int = 0, seed: int = 1) -> list[Generation]:
    how = SamplingParameters(max_tokens=6, seed=seed, ignore_eos=True)
    with sampler._wake:  # all arrive in one step
        futures = [sampler.submit(prompt, how, version) for prompt in prompts]
    return [future.result(timeout=120) for future in futures]


def expected_logprobs(base_model: Path, prompt: list[int], answer: Generation) -> torch.Tensor:
    whole = torch.tensor([[*prompt, *answer.token_ids]])
    model = load_model(base_model)[0]
    with torch.no_grad():
        at_T_V = torch.log_softmax(head(model, trunk(model, whole))[0, len(prompt) - 1 : -1], dim=-1)
    return at_T_V.gather(1, torch.tensor(answer.token_ids)[:, None])[:, 0]


def assert_right(base_model: Path, prompts: list[list[int]], answers: list[Generation]) -> None:
    for prompt, answer in zip(prompts, answers, strict=True):
        sampled_logprobs = torch.tensor(answer.logprobs)
        assert torch.allclose(sampled_logprobs, expected_logprobs(base_model, prompt, answer), atol=1e-4)


def test_a_group_and_its_neighbours_read_their_common_beginning_once(sampler: Sampler, base_model: Path) -> None:
    """More requests than rows: the later ones find what the earlier ones left."""
    prompts = [[*SYSTEM, *question] for question in QUESTIONS for _ in range(3)]
    assert_right(base_model, prompts, ask(sampler, *prompts))
    assert sampler.reused_tokens >= len(SYSTEM) * (len(prompts) - 1)
    assert sampler.reused_tokens < sum(map(len, prompts))


def test_requests_for_one_prompt_that_come_together_read_it_once(sampler: Sampler, base_model: Path) -> None:
    prompts = [[*SYSTEM, 9], [*SYSTEM, 9], [*SYSTEM, 9], [5, 6]]
    answers = ask(sampler, *prompts)
    assert_right(base_model, prompts, answers)
    assert answers[0].token_ids == answers[1].token_ids == answers[2].token_ids
    assert sampler.reused_tokens == 2 * len(prompts[0])
    later_answers = ask(sampler, *prompts)
    assert [answer.token_ids for answer in later_answers] == [answer.token_ids for answer in answers]


def test_an_episodes_next_turn_goes_on_from_the_last(sampler: Sampler, base_model: Path) -> None:
    first = [*SYSTEM, 9]
    (answer,) = ask(sampler, first)
    second = [*first, *answer.token_ids, 21, 22, 23]
    assert_right(base_model, [second], ask(sampler, second))
    assert sampler.reused_tokens == len(first) + len(answer.token_ids) - 1, "the last token was sampled and never read"


def test_a_repeated_question_reads_one_token(sampler: Sampler, base_model: Path) -> None:
    prompt = [*SYSTEM, *QUESTIONS[0]]
    answers = [*ask(sampler, prompt), *ask(sampler, prompt)]
    assert answers[0].token_ids == answers[1].token_ids
    assert_right(base_model, [prompt] * 2, answers)
    assert sampler.reused_tokens == len(prompt) - 1


def test_a_version_reads_no_prefix_of_another(sampler: Sampler, base_model: Path) -> None:
    sampler.load(1, load_model(base_model)[0])
    prompt = [*SYSTEM, 9]
    ask(sampler, prompt)
    ask(sampler, prompt, version=1)
    assert sampler.reused_tokens == 0


def test_a_prompt_as_long_as_the_context_works_beside_a_short_one(sampler: Sampler, base_model: Path) -> None:
    """Padding of the shorter ending would lie beyond the context."""
    longest = sampler.config.max_tokens
    ask(sampler, [*SYSTEM, 3])
    ending = [number % 300 for number in range(longest - 6 - len(SYSTEM))]
    prompts = [[*SYSTEM, *ending], [*SYSTEM, *ending[:-20], 4], [*SYSTEM, 4]]
    assert_right(base_model, prompts, ask(sampler, *prompts))


def same_beginning(content: list[int], other_content: list[int]) -> int:
    return max(n for n in range(min(len(content), len(other_content)) + 1) if content[:n] == other_content[:n])


tokens = st.lists(st.integers(0, 1), min_size=1, max_size=60)


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 1), tokens), max_size=12), tokens, st.integers(0, 1))
def test_a_found_prefix_is_held_and_as_long_as_any_other(
    changes: list[tuple[int, int, list[int]]], prompt: list[int], version: int
) -> None:
    index, rows = PrefixIndex(), dict[int, tuple[int, list[int]]]()
    for row, of_version, content in changes:
        if len(content) % 7 == 0:
            index.forget(row)
            rows.pop(row, None)
        else:
            index.hold(row, of_version, content)
            rows[row] = (of_version, content)
    shared = index.find(version, prompt)
    same = [content for of_version, content in rows.values() if of_version == version]
    blocks = [same_beginning(content, prompt) // BLOCK_TOKENS for content in same]
    if shared == Shared():
        assert max(blocks, default=0) == 0 or len(prompt) == BLOCK_TOKENS
    else:
        of_version, content = rows[shared.row]
        assert of_version == version
        assert content[: shared.tokens] == prompt[: shared.tokens]
        assert shared.tokens < len(prompt)
        assert (shared.tokens + 1) // BLOCK_TOKENS >= max(blocks)
