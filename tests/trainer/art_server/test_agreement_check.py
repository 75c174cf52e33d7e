"""What a server sampled is held against the model before it is trained."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from rollbus.schemas.errors import RejectedError
from rollbus.schemas.records.tokens import decode_logprobs, decode_token_ids, encode_logprobs, encode_token_ids
from rollbus.trainer.art_server.learner.agreement import AgreementCheck
from rollbus.trainer.art_server.model.model import head, trunk
from rollbus.trainer.backends.protocol import TurnTokens
from tests.models import create_model, load_model

PROMPT = [5, 60, 70, 80, 90]
MOST = 0.1


@pytest.fixture(scope="module")
def model(base_model: Path) -> nn.Module:
    return load_model(base_model)[0]


@pytest.fixture(scope="module")
def other(base_model: Path, tokenizer: Any, tmp_path_factory: pytest.TempPathFactory) -> nn.Module:
    """Other weights of the same shape."""
    folder = create_model(tmp_path_factory.mktemp("other") / "m", load_model(base_model)[1], tokenizer, seed=9)
    return load_model(folder)[0]


def make_turn(
    model: nn.Module,
    *,
    seed: int = 0,
    source: str = "shop",
    version: int = 3,
    temperature: float = 1.0,
    most_likely: int | None = None,
) -> TurnTokens:
    """Sample twelve tokens at a temperature, of the most likely ones; the record names neither, as of a client that
    left them out.
    """
    generator, token_ids, logprobs = torch.Generator().manual_seed(seed), list(PROMPT), []
    for _ in range(12):
        with torch.no_grad():
            logits_V = head(model, trunk(model, torch.tensor([token_ids])))[0, -1] / temperature
        if most_likely is not None:
            logits_V[logits_V < logits_V.topk(most_likely).values[-1]] = -torch.inf
        at_V = torch.log_softmax(logits_V, dim=-1)
        token_ids.append(int(torch.multinomial(at_V.exp(), 1, generator=generator)))
        logprobs.append(float(at_V[token_ids[-1]]))
    completion = encode_token_ids(token_ids[len(PROMPT) :])
    return TurnTokens(encode_token_ids(PROMPT), completion, encode_logprobs(logprobs), version, source=source)


def require(
    check: AgreementCheck, model: nn.Module, *turns: TurnTokens, loaded: nn.Module | None = None
) -> dict[str, float]:
    return check.require(turns, base_version=3, most=MOST, model=model, load=lambda _: loaded)


def test_turns_of_the_model_itself_pass_with_a_metric_of_difference(model: nn.Module) -> None:
    metrics = require(AgreementCheck(), model, *(make_turn(model, seed=seed) for seed in range(4)))
    assert metrics["source_difference_max"] < 1e-4


def test_an_unstated_temperature_is_found_and_refuses_the_batch(model: nn.Module) -> None:
    turns = [make_turn(model, seed=seed, temperature=0.5) for seed in range(4)]
    with pytest.raises(
        RejectedError, match=r"producer 'shop' .* version 3 .* agree at temperature 0\.5, .*Nothing was"
    ):
        require(AgreementCheck(), model, *turns)


def test_other_weights_under_the_name_of_a_version_refuse_the_batch(model: nn.Module, other: nn.Module) -> None:
    with pytest.raises(RejectedError, match="may have served other weights than this version"):
        require(AgreementCheck(), model, make_turn(other))


def test_an_older_versions_weights_under_a_newer_name_are_named(model: nn.Module, other: nn.Module) -> None:
    with pytest.raises(RejectedError, match=r"recorded from version 3 .* they agree with version 0, .*Nothing was"):
        require(AgreementCheck(), model, make_turn(other), loaded=other)


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_tokens_that_the_server_left_out_are_named(model: nn.Module, temperature: float) -> None:
    turns = [make_turn(model, seed=seed, temperature=temperature, most_likely=40) for seed in range(4)]
    with pytest.raises(RejectedError, match=r"the server left tokens out \(top_p, top_k, min_p or a grammar\)"):
        require(AgreementCheck(), model, *turns)


def test_one_source_among_many_cannot_hide_behind_their_mean(model: nn.Module, other: nn.Module) -> None:
    turns = [make_turn(model, seed=seed, source=f"agent-{seed}") for seed in range(6)]
    with pytest.raises(RejectedError, match="producer 'stranger'"):
        require(AgreementCheck(), model, *turns, make_turn(other, source="stranger"))


def test_a_source_that_agreed_is_watched_in_each_later_batch(model: nn.Module, other: nn.Module) -> None:
    check = AgreementCheck()
    require(check, model, make_turn(model))
    with pytest.raises(RejectedError, match="producer 'shop'"):
        require(check, model, *(make_turn(other, seed=seed) for seed in range(1, 9)))


def test_a_source_of_older_versions_is_checked_once_by_their_checkpoint(model: nn.Module, other: nn.Module) -> None:
    check, turns = AgreementCheck(), [make_turn(other, version=2)]
    assert require(check, model, *turns, loaded=other)["source_difference_max"] < 1e-4
    assert require(check, model, *turns, loaded=model) == {}
    with pytest.raises(RejectedError, match="version 2"):
        require(AgreementCheck(), model, *turns, loaded=model)


def test_a_version_whose_checkpoint_is_gone_is_not_judged(model: nn.Module, other: nn.Module) -> None:
    assert require(AgreementCheck(), model, make_turn(other, version=2), loaded=None) == {}


def test_a_stated_temperature_with_processed_log_probs_agrees(model: nn.Module) -> None:
    turn = replace(make_turn(model, temperature=0.5), temperature=0.5, logprob_mode="processed")
    assert require(AgreementCheck(), model, turn)["source_difference_max"] < 1e-4


def shift_first_tokens(turn: TurnTokens, tokens: int, by: float) -> TurnTokens:
    """Return the first sampled tokens of a turn alone, with other log-probs than the model's by so many nats."""
    logprobs = [value - by for value in list(decode_logprobs(turn.logprobs))[:tokens]]
    ids = list(decode_token_ids(turn.completion_token_ids))[:tokens]
    return replace(turn, completion_token_ids=encode_token_ids(ids), logprobs=encode_logprobs(logprobs))


def test_one_token_off_by_a_rounding_refuses_no_batch(model: nn.Module) -> None:
    check = AgreementCheck()
    require(check, model, *(make_turn(model, seed=seed) for seed in range(4)))
    odd = shift_first_tokens(make_turn(model, seed=5), 1, 0.142)
    assert require(check, model, odd)["source_difference_max"] == pytest.approx(0.142, abs=1e-3)
    whole = [make_turn(model, seed=seed) for seed in range(6, 9)]
    assert require(check, model, odd, *whole)["source_difference_max"] < 0.01, (
        "more turns are looked at before a verdict"
    )


@pytest.mark.parametrize(("tokens", "by"), [(1, 1.6), (4, 0.5), (12, 0.25)])
def test_few_tokens_that_are_far_off_refuse_the_batch(model: nn.Module, tokens: int, by: float) -> None:
    check = AgreementCheck()
    require(check, model, make_turn(model))
    with pytest.raises(RejectedError, match="differ from the model's own"):
        require(check, model, shift_first_tokens(make_turn(model, seed=5), tokens, by))
