import math
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from rollbus.trainer.art_server.checkpoints.loading import ModelLoader
from rollbus.trainer.art_server.learner.update import micro_batches, score
from rollbus.trainer.art_server.model.model import head, trunk
from rollbus.trainer.art_server.sampler.requests import SamplingParameters, UnknownVersionError
from rollbus.trainer.art_server.sampler.sampler import Sampler
from rollbus.trainer.art_server.sampler.sampling import choose
from tests.models import create_model, load_model
from tests.sequences import make_sequence

PROMPT = [5, 60, 70, 80, 90]


@pytest.fixture
def sampler(base_model: Path, tokenizer: Any) -> Iterator[Sampler]:
    model, config = load_model(base_model)
    loaded_sampler = Sampler(config, tokenizer, max_rows=8, keep_versions=2)
    loaded_sampler.load(0, model)
    yield loaded_sampler
    loaded_sampler.close()


def ask(sampler: Sampler, prompt: list[int] = PROMPT, version: int = 0, **changed: Any) -> Any:
    parameters = SamplingParameters(**{"max_tokens": 12, "ignore_eos": True, **changed})
    return sampler.submit(prompt, parameters, version).result(timeout=120)


@contextmanager
def busy(sampler: Sampler, *, max_tokens: int = 2) -> Iterator[Any]:
    """Let the sampler work on one request, which goes on when the block ends."""
    begun, go_on = threading.Event(), threading.Event()

    def hold(*_: object) -> None:
        begun.set()
        go_on.wait(timeout=120)

    running = sampler.submit(PROMPT, SamplingParameters(max_tokens=max_tokens, ignore_eos=True), 0, hold)
    assert begun.wait(timeout=120)
    try:
        yield running
    finally:
        go_on.set()


def recomputed(path: Path, prompt: list[int], token_ids: tuple[int, ...]) -> torch.Tensor:
    model, _ = load_model(path)
    with torch.no_grad():
        logits = head(model, trunk(model, torch.tensor([[*prompt, *token_ids]])))
    logprobs = torch.log_softmax(logits, dim=-1)[0, len(prompt) - 1 : -1]
    return logprobs.gather(1, torch.tensor(token_ids)[:, None])[:, 0]


def test_reported_logprobs_are_those_of_a_full_pass(sampler: Sampler, base_model: Path) -> None:
    answer = ask(sampler, temperature=0.7, top_p=0.9, seed=3)
    expected = recomputed(base_model, PROMPT, answer.token_ids)
    assert torch.allclose(torch.tensor(answer.logprobs), expected, atol=1e-5)


def test_an_answer_does_not_depend_on_what_else_is_in_the_batch(sampler: Sampler) -> None:
    alone = ask(sampler, seed=11)
    other_futures = [
        sampler.submit([9] * (3 + 2 * i), SamplingParameters(max_tokens=3 + i, seed=i, ignore_eos=True), 0)
        for i in range(20)
    ]
    among_others = ask(sampler, seed=11)
    assert [len(future.result(timeout=120).token_ids) for future in other_futures] == [3 + i for i in range(20)]
    assert among_others.token_ids == alone.token_ids
    assert among_others.logprobs == pytest.approx(alone.logprobs, abs=1e-5)


def test_generation_stops_at_a_stop_string_and_cuts_it_off(sampler: Sampler) -> None:
    whole = ask(sampler, seed=5, max_tokens=20)
    stop = whole.text[3:5]
    answer = ask(sampler, seed=5, max_tokens=20, stop=(stop,))
    assert answer.finish_reason == "stop"
    assert stop not in answer.text
    assert whole.text.startswith(answer.text)
    assert answer.token_ids == whole.token_ids[: len(answer.token_ids)]


def test_generation_stops_at_max_tokens(sampler: Sampler) -> None:
    answer = ask(sampler, max_tokens=4)
    assert (len(answer.token_ids), answer.finish_reason) == (4, "length")


def test_top_logprobs_are_sorted_and_hold_the_most_probable(sampler: Sampler) -> None:
    answer = ask(sampler, temperature=0, top_logprobs=3)
    for token_id, logprob, top in zip(answer.token_ids, answer.logprobs, answer.top_logprobs, strict=True):
        assert top[0] == (token_id, pytest.approx(logprob))
        assert [value for _, value in top] == sorted((value for _, value in top), reverse=True)


def test_a_request_too_long_is_refused_at_once(sampler: Sampler) -> None:
    with pytest.raises(ValueError, match="do not fit"):
        sampler.submit([1] * 120, SamplingParameters(max_tokens=9), 0)


def test_a_request_finishes_on_the_version_it_began_with(
    sampler: Sampler, base_model: Path, tmp_path: Path, tokenizer: Any
) -> None:
    other = create_model(tmp_path / "other", sampler.config, tokenizer, seed=99)
    started = threading.Event()
    running = sampler.submit(
        PROMPT, SamplingParameters(max_tokens=100, seed=1, ignore_eos=True), 0, lambda *_: started.set()
    )
    assert started.wait(timeout=120)
    sampler.load(1, load_model(other)[0])
    later = ask(sampler, version=1, seed=1)
    first = running.result(timeout=120)
    assert (first.version, later.version) == (0, 1)
    assert torch.allclose(torch.tensor(first.logprobs), recomputed(base_model, PROMPT, first.token_ids), atol=1e-4)
    assert torch.allclose(torch.tensor(later.logprobs), recomputed(other, PROMPT, later.token_ids), atol=1e-4)


def test_old_versions_are_forgotten_but_not_the_pinned_one(sampler: Sampler, base_model: Path) -> None:
    sampler.pin([0])
    for version in (1, 2, 3):
        sampler.load(version, load_model(base_model)[0])
    assert sampler.loaded() == (0, 2, 3)
    with pytest.raises(UnknownVersionError):
        ask(sampler, version=1)
    sampler.load(1, load_model(base_model)[0])
    assert ask(sampler, version=1).version == 1, "old, but just asked for"


def test_a_canceled_request_frees_its_row(sampler: Sampler) -> None:
    started = threading.Event()
    long = [
        sampler.submit(PROMPT, SamplingParameters(max_tokens=120, ignore_eos=True), 0, lambda *_: started.set())
        for _ in range(8)
    ]
    assert started.wait(timeout=120)
    for future in long:
        future.cancel()
    assert len(ask(sampler, max_tokens=2).token_ids) == 2


def test_a_request_canceled_while_it_waits_costs_no_pass(sampler: Sampler) -> None:
    with busy(sampler) as running:
        waiting = [sampler.submit(PROMPT, SamplingParameters(max_tokens=5, ignore_eos=True), 0) for _ in range(20)]
        for future in waiting:
            future.cancel()
    running.result(timeout=120)
    assert len(ask(sampler, max_tokens=3).token_ids) == 3
    assert sampler.tokens == 2 + 3


def test_a_request_of_live_traffic_begins_before_those_in_the_background(sampler: Sampler) -> None:
    ended = list[str]()

    def submit(name: str, priority: int) -> Any:
        how = SamplingParameters(max_tokens=3, ignore_eos=True, priority=priority)
        future = sampler.submit(PROMPT, how, 0)
        future.add_done_callback(lambda _: ended.append(name))
        return future

    with busy(sampler) as running:
        futures = [submit(f"background {number}", 1) for number in range(20)]
        futures += [submit(f"live {number}", 0) for number in range(3)]
    for future in (running, *futures):
        future.result(timeout=120)
    # of eight rows one is taken: the live ones and the first four of the background begin with the first that are free
    assert set(ended[:7]) == {"live 0", "live 1", "live 2", *(f"background {number}" for number in range(4))}


class BrokenTokenizer:
    """Knows no text for the tokens of one answer."""

    def __init__(self, like: Any) -> None:
        self.eos_token_id, self._like = like.eos_token_id, like

    def decode(self, token_ids: list[int], **options: Any) -> str:
        if len(token_ids) == 2:
            raise TypeError("no text for these tokens")
        decoded: str = self._like.decode(token_ids, **options)
        return decoded


def test_a_text_that_fails_costs_requests_and_not_the_sampler(base_model: Path, tokenizer: Any) -> None:
    model, config = load_model(base_model)
    sampler = Sampler(config, BrokenTokenizer(tokenizer), max_rows=8, keep_versions=1)
    sampler.load(0, model)
    with busy(sampler, max_tokens=3) as whole:
        broken = sampler.submit(PROMPT, SamplingParameters(max_tokens=2, ignore_eos=True), 0)  # ends in the same step
        sampler.load(1, load_model(base_model)[0])
    assert len(whole.result(timeout=120).token_ids) == 3
    assert isinstance(broken.exception(timeout=120), TypeError)
    for version in (2, 3):
        sampler.load(version, load_model(base_model)[0])
        assert len(ask(sampler, version=version, max_tokens=3).token_ids) == 3
    assert sampler.loaded() == (3,)
    sampler.close()


def test_closing_answers_what_is_waiting(base_model: Path, tokenizer: Any) -> None:
    model, config = load_model(base_model)
    sampler = Sampler(config, tokenizer, max_rows=1)
    sampler.load(0, model)
    futures = [sampler.submit(PROMPT, SamplingParameters(max_tokens=100, ignore_eos=True), 0) for _ in range(3)]
    sampler.close()
    for future in futures:
        assert future.exception(timeout=120) is None or "shutting down" in str(future.exception())


def test_nucleus_keeps_the_smallest_set_that_reaches_top_p() -> None:
    probabilities = torch.tensor([[0.5, 0.3, 0.15, 0.05]])
    uniforms = torch.linspace(0, 0.999, 200, dtype=torch.float64)
    seen = set()
    for uniform in uniforms:
        chosen = choose(probabilities.log(), torch.ones(1), torch.tensor([0.6]).double(), uniform[None], nucleus=True)
        seen.add(int(chosen.token_ids_B))
    assert seen == {0, 1}


@pytest.mark.parametrize("mode", ["raw", "processed"])
@pytest.mark.parametrize("temperature", [0.0, 1e-300, 1e-40, 1e-5])
def test_a_tiny_temperature_takes_the_most_probable_token(temperature: float, mode: Any) -> None:
    logits = torch.tensor([[0.5, 3.0, -20.0]])
    chosen = choose(
        logits, torch.tensor([temperature]), torch.ones(1), torch.full((1,), 0.99), nucleus=False, mode=mode
    )
    assert chosen.token_ids_B.tolist() == [1]
    assert torch.equal(chosen.logprobs_B_V, torch.log_softmax(logits, dim=-1))


def test_sampling_follows_the_distribution_at_its_temperature() -> None:
    logits = torch.tensor([[0.0, 1.0, 2.0]]).expand(4000, 3)
    uniforms = (torch.arange(4000, dtype=torch.float64) + 0.5) / 4000
    chosen = choose(logits, torch.full((4000,), 2.0), torch.ones(4000).double(), uniforms, nucleus=False)
    shares = torch.bincount(chosen.token_ids_B, minlength=3) / 4000
    assert shares.tolist() == pytest.approx(torch.softmax(logits[0] / 2, dim=-1).tolist(), abs=1e-3)
    assert float(chosen.logprobs_B[-1]) == pytest.approx(2 - math.log(1 + math.e + math.e**2), abs=1e-6)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.7])
def test_the_update_recomputes_processed_logprobs_at_their_temperature(
    base_model: Path, tokenizer: Any, temperature: float
) -> None:
    model, config = load_model(base_model)
    sampler = Sampler(config, tokenizer, keep_versions=1, logprobs_mode="processed")
    sampler.load(0, model)
    try:
        answer = ask(sampler, temperature=temperature, seed=5)
    finally:
        sampler.close()
    sequence = make_sequence(PROMPT, answer.token_ids, logprobs=answer.logprobs, temperature=temperature)
    (batch,) = micro_batches([sequence])
    with torch.no_grad():
        scores = score(load_model(base_model)[0], batch)
    assert torch.allclose(torch.tensor(answer.logprobs), scores.logprobs_N, atol=1e-4)


def test_a_token_outside_the_tokenizer_has_no_probability(base_model: Path, tokenizer: Any) -> None:
    """Vocabularies are padded: rows beyond the tokenizer's ids mean nothing."""
    _, config = load_model(base_model)
    few = replace(config, known_tokens=100)
    sampler = Sampler(few, tokenizer, max_rows=8)
    try:
        sampler.load(0, ModelLoader(few).load(base_model))
        answers = [ask(sampler, seed=seed, max_tokens=40) for seed in range(6)]
    finally:
        sampler.close()
    assert max(max(answer.token_ids) for answer in answers) < 100
    model = ModelLoader(few).load(base_model)
    with torch.no_grad():
        logprobs = torch.log_softmax(head(model, trunk(model, torch.tensor([PROMPT]))), dim=-1)
    assert float(logprobs[..., :100].exp().sum(dim=-1).mean()) == pytest.approx(1.0, abs=1e-5)
    assert float(logprobs[..., 100:].exp().max()) == 0.0
