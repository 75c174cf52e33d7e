"""A real model's estimate against its exact truth: answers of one token, as in the routing model, whose mean reward
under any version is a sum over the vocabulary.
"""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import openai
import pytest
import torch

from rollbus.estimates.estimate import estimate_version
from rollbus.estimates.recorded import Period
from rollbus.estimates.scoring import EndpointScorer
from rollbus.schemas.kafka.payload import KafkaPayload
from rollbus.schemas.records.config import RunConfig, ScoringConfig
from rollbus.schemas.records.tokens import encode_logprobs, encode_token_ids
from rollbus.schemas.records.trajectories import History, Location, Score, Span, Trajectory
from rollbus.trainer.service.generate.sampler import Sampler
from rollbus.trainer.service.model.model import head, trunk
from rollbus.trainer.service.serve.endpoint import ServedModel
from tests.builders import make_score, make_trajectory
from tests.models import load_model
from tests.trainer.service.conftest import serving

TASKS = ("choose a letter", "say it again", "the word")
EPISODES = 128
"""Of each task."""


class Recorded:
    """The trajectories of a log, by their places."""

    def __init__(self) -> None:
        self.by_place: dict[Location, Trajectory] = {}

    async def fetch(self, locations: Collection[Location]) -> Mapping[Location, Trajectory]:
        return {each: self.by_place[each] for each in locations}


@pytest.fixture(scope="module")
def models(base_model: Path) -> list[Any]:
    """A version, and one that likes the even tokens more: up to e^1.6 times as much."""
    old: Any
    new: Any
    old, new = (load_model(base_model)[0] for _ in range(2))
    with torch.no_grad():
        weight = new.tok_embeddings.weight if new.output is None else new.output.weight
        hidden = trunk(old, torch.tensor([[1, 2, 3]]))[0, -1]
        weight[::2] += 1.6 * hidden / hidden.norm() ** 2
    return [old, new]


@pytest.fixture(scope="module")
def earned(models: list[Any], tokenizer: Any) -> list[float]:
    """What each version earns; asked before a sampler takes the models over."""
    prompts = [tokenizer.encode(task) for task in TASKS]
    return [sum(expected_reward(model, prompt) for prompt in prompts) / len(prompts) for model in models]


@pytest.fixture(scope="module")
def url(earned: list[float], models: list[Any], base_model: Path, tokenizer: Any) -> Iterator[str]:
    sampler = Sampler(load_model(base_model)[1], tokenizer, max_rows=32)
    for version, model in enumerate(models):
        sampler.load(version, model)
    with serving(ServedModel("agent", sampler, tokenizer, serving=0)) as address:
        yield f"{address}/v1"
    sampler.close()


def expected_reward(model: Any, prompt: list[int]) -> float:
    """The probability of an even token."""
    with torch.inference_mode():
        logits = head(model, trunk(model, torch.tensor([prompt]))[0, -1])
    return float(torch.softmax(logits, dim=-1)[::2].sum())


async def test_an_estimate_from_what_one_version_sampled_holds_what_the_other_one_earns(
    earned: list[float], url: str, tokenizer: Any
) -> None:
    scores, recorded, prompts = list[Score](), Recorded(), [tokenizer.encode(task) for task in TASKS]
    async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client:
        for task, prompt in zip(TASKS, prompts, strict=True):
            answer: Any = await client.completions.create(
                model="agent@0", prompt=prompt, max_tokens=1, n=EPISODES, logprobs=0, seed=5
            )
            for choice in answer.choices:
                (token,), (logprob,) = choice.token_ids, choice.logprobs.token_logprobs
                place = Location(topic="trajectories", partition=0, offset=len(scores))
                history = History(
                    token_ids=encode_token_ids([*prompt, token]),
                    logprobs=encode_logprobs([logprob]),
                    spans=(Span(start=len(prompt), end=len(prompt) + 1, turn=0, policy_version=0),),
                )
                name = f"{task} {choice.index}"
                recorded.by_place[place] = make_trajectory(name, histories=(history,))
                scores.append(
                    make_score(
                        name, float(token % 2 == 0), episode_id=name, location=place, task=task, prompt_hash=task
                    )
                )
    scorer = EndpointScorer(url)
    found = await estimate_version(
        Period(tuple(scores), Counter()), RunConfig(), ScoringConfig(), 1,
        payload=cast("KafkaPayload", recorded), scorer=scorer, kl_to=0,
    )  # fmt: skip
    await scorer.close()
    before, truth = earned
    assert truth - before > 0.05, "the versions differ"
    assert found.estimates.overlap.effective > 200
    for estimate in found.estimates.by_name.values():
        assert estimate.earned.low < truth < estimate.earned.high
        assert estimate.difference.low < truth - before < estimate.difference.high
    assert found.divergence is not None
    assert 0 < found.divergence.high < 0.2
