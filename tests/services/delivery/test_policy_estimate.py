"""`rollbus policy estimate` on a real broker, with a server that scores prompts as vLLM does: near the known truth,
refused where the log says nothing, and published for delivery.
"""

import asyncio
import re
from collections.abc import Iterator
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from math import log
from pathlib import Path
from random import Random
from typing import Any

import pytest
from aiokafka import TopicPartition

from rollbus.estimates.sample import read_rescored
from rollbus.health.reading import open_health
from rollbus.runtime.kafka.reading import read_from
from rollbus.schemas.codec import decode, encode
from rollbus.schemas.records.config import ESTIMATES
from rollbus.schemas.records.steps import Evaluation
from rollbus.schemas.records.tokens import encode_logprobs, encode_token_ids
from rollbus.schemas.records.trajectories import History, Location, Span, Trajectory
from rollbus.schemas.topics import DELIVERY_LOG, EVALUATIONS, POLICY_VERSIONS, SCORES, TRAJECTORIES
from rollbus.streams.kafka.settings import StreamSettings
from rollbus.streams.kafka.topics_on_broker import ensure_topics
from tests.builders import make_score, make_trajectory, make_version
from tests.console import ROLLBUS
from tests.estimates.worlds import choose
from tests.services.commands import say_in_thread, say_installed, write_config
from tests.services.streams.fixtures import read_topic, send, stream_settings
from tests.web import QuietHandler, serve

pytestmark = pytest.mark.services

PROMPT, ANSWERS, GOOD = [1, 2, 3], (10, 11, 12, 13), (0.9, 0.6, 0.3, 0.0)
VERSIONS = {
    "agent@0": (0.25, 0.25, 0.25, 0.25),
    "agent@1": (0.45, 0.3, 0.15, 0.1),
    "agent@2": (0.1, 0.1, 0.1, 0.1),  # the rest on answers that were never recorded
    "agent@3": (0.225, 0.225, 0.225, 0.225),  # a tenth
}
SECTIONS: dict[str, Any] = {
    "worker": {"event_partitions": 2},
    "runs": [{"run_id": "main", "delivery": {"wait_ms": 0}}],
    "trainer": {"serve": "after_evaluation"},
}


class Scoring(QuietHandler):
    """Answers echo with the log-probs of `VERSIONS`; each prompt token has a half."""

    def do_POST(self) -> None:
        body = self.read_json()
        assert (body["echo"], body["max_tokens"]) == (True, 0)
        probabilities = VERSIONS.get(body["model"])
        if probabilities is None:
            self.answer({"error": {"message": f"The model `{body['model']}` does not exist"}}, 404)
            return
        logprobs = [[None, -0.5, -0.5, log(probabilities[ANSWERS.index(ids[-1])])] for ids in body["prompt"]]
        choices = [
            {"index": i, "logprobs": {"token_logprobs": logprobs_of_prompt}}
            for i, logprobs_of_prompt in enumerate(logprobs)
        ]
        self.answer({"choices": choices})


@pytest.fixture
def url() -> Iterator[str]:
    with serve(Scoring) as address:
        yield f"{address}/v1"


async def test_delivery_gets_the_estimate_of_a_version_from_recorded_traffic(
    kafka: str, namespace: str, url: str, tmp_path: Path
) -> None:
    settings = stream_settings(kafka, namespace)
    await ensure_topics(settings, [])
    await record(settings, 500)
    config = write_config(tmp_path, kafka, namespace, **SECTIONS)

    output = await say_installed(config, f"policy estimate 1 --since 1h --kl-to 0 --url {url}")
    for reason in ("10 reward outstanding", "5 excluded", "7 temperature"):
        assert f"left out: {reason}" in output, output
    assert "version 1: 478 episodes" in output
    assert "doubly robust ◀" in output
    assert "assumes that rewards still outstanding will come like those of episodes that are older" in output
    estimate = partial(say_in_thread, config, "policy", "estimate", "--since", "1h", "--url", url)
    refused = await estimate("2")
    assert "no estimate: the log shows" in refused, refused
    partly = await estimate("3", "--kl-to", "0")
    assert "doubly robust" in partly
    assert "no KL divergence: the log shows 90% of what the version would do" in partly, partly
    gone = await estimate("9", expect=1)
    assert "serves no agent@9: its checkpoint is gone" in gone

    evaluations = [
        evaluation
        for evaluation in await read_topic(settings, EVALUATIONS.name, 1)
        if isinstance(evaluation, Evaluation)
    ]
    assert [(evaluation.policy_version, evaluation.name) for evaluation in evaluations] == [
        (number, ESTIMATES) for number in (1, 2, 3)
    ]
    assert {evaluation.episodes for evaluation in evaluations} == {478}
    estimated, unknown, partly_known = (evaluation.metrics for evaluation in evaluations)
    truth = sum(p * good for p, good in zip(VERSIONS["agent@1"], GOOD, strict=True))
    earned = sum(0.25 * good for good in GOOD)
    for name in ("ips", "self_normalised", "per_decision", "doubly_robust"):
        assert estimated[f"{name}_low"] < truth < estimated[f"{name}_high"]
    assert estimated["difference_low"] < truth - earned < estimated["difference_high"]
    assert estimated["difference_low"] > 0, "it is certainly better"
    kl = sum(p * log(p / 0.25) for p in VERSIONS["agent@1"])
    assert estimated["kl_low"] < kl < estimated["kl_high"]
    assert (unknown["refused"], "difference" in unknown) == (1.0, False)
    assert (partly_known["refused"], "difference" in partly_known, "kl" in partly_known) == (1.0, True, False)
    evaluations_of_delivery = [
        evaluation
        for evaluation in await read_topic(settings, DELIVERY_LOG.name, 1)
        if isinstance(evaluation, Evaluation)
    ]
    assert evaluations_of_delivery == evaluations


async def test_an_estimate_samples_as_many_episodes_as_it_is_told(
    kafka: str, namespace: str, url: str, tmp_path: Path
) -> None:
    settings = stream_settings(kafka, namespace)
    await ensure_topics(settings, [])
    await record(settings, 300)
    config = write_config(tmp_path, kafka, namespace, **SECTIONS)
    estimate = partial(say_in_thread, config, "policy", "estimate", "1", "--url", url)
    output = await estimate("--since", "1h", "--episodes", "100")
    sampled = int(re.findall(r"version 1: (\d+) episodes", output)[0])
    left_out = sum(map(int, re.findall(r"left out: (\d+) ", output)))
    assert sampled <= 100 < sampled + left_out + 100, output
    assert sampled + left_out >= 100, output
    assert "0 episodes are too few, it takes 100; go further back by --since" in await estimate("--since", "0d")


async def test_each_new_candidate_is_estimated_once_until_the_command_is_stopped(
    kafka: str, namespace: str, url: str, tmp_path: Path
) -> None:
    settings = stream_settings(kafka, namespace)
    await ensure_topics(settings, [])
    await record(settings, 200)
    versions = [make_version(0, state="serving"), make_version(9, 0, state="candidate")]
    await send(settings, POLICY_VERSIONS.name, [(b"agent", encode(version)) for version in versions])
    config = write_config(tmp_path, kafka, namespace, **SECTIONS)
    process = await asyncio.create_subprocess_exec(
        *(ROLLBUS, "-c", str(config), "policy", "estimate", "--follow", "--url", url), cwd=tmp_path,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    assert process.stdout is not None
    output = b""
    async with asyncio.timeout(120):
        while b"serves no agent@9" not in output:  # what cannot be scored does not end it
            output += await process.stdout.readline()
        async with open_health(settings.kafka, namespace) as health:
            while not any("serves no agent@9" in problem.what for problem in (await health.picture()).problems):
                pass
        newer = make_version(10, 0, state="candidate")
        VERSIONS["agent@10"] = VERSIONS["agent@1"]
        await send(settings, POLICY_VERSIONS.name, [(b"agent", encode(newer))])
        while b"version 10: 178 episodes" not in output:
            output += await process.stdout.readline()
    process.terminate()
    rest, _ = await asyncio.wait_for(process.communicate(), 120)
    assert process.returncode == 0, (output + rest).decode()
    evaluations = [
        evaluation
        for evaluation in await read_topic(settings, EVALUATIONS.name, 1)
        if isinstance(evaluation, Evaluation)
    ]
    assert [evaluation.policy_version for evaluation in evaluations] == [10]


async def test_a_replay_gives_the_newest_score_of_each_episode(kafka: str, namespace: str) -> None:
    settings = stream_settings(kafka, namespace)
    await ensure_topics(settings, [])
    scores = [make_score("t1", 0.25), make_score("t1", 0.5, revision=1), make_score("t2", None)]
    await send(settings, SCORES.name, [(b"k", encode(score)) for score in scores])
    rescored = await read_rescored(settings, "main", only_admitted=True)
    assert rescored.values == {"e-t1": 0.5, "e-t2": None}
    assert rescored.admitted == frozenset()


async def record(settings: StreamSettings, count: int) -> None:
    """Record so many episodes of version 0; some of them say nothing of another version."""
    chance, trajectories, good = Random(6), list[Trajectory](), dict[str, float]()
    for number in range(count):
        at = choose(chance, VERSIONS["agent@0"])
        history = History(
            token_ids=encode_token_ids([*PROMPT, ANSWERS[at]]),
            logprobs=encode_logprobs([log(0.25)]),
            spans=(Span(start=3, end=4, turn=0, policy_version=0),),
        )
        trajectory = make_trajectory(f"e{number}", histories=(history,))
        if 20 <= number < 27:
            trajectory = replace(trajectory, turns=(replace(trajectory.turns[0], temperature=0.7),))
        good[f"e{number}"] = float(chance.random() < GOOD[at])
        trajectories.append(trajectory)
    await send(settings, TRAJECTORIES.name, [(b"k", encode(trajectory)) for trajectory in trajectories])
    scores = []
    for location, trajectory in await locations(settings):
        number = int(trajectory.episode_id.removeprefix("e"))
        value = None if number < 10 else good[trajectory.episode_id]
        scores.append(
            make_score(
                trajectory.trajectory_id,
                value,
                episode_id=trajectory.episode_id,
                location=location,
                served_versions=(0,),
                excluded=10 <= number < 15,
            )
        )
    scores += [make_score("other", 0.0, model="other", served_versions=(0,))]
    scores += [make_score("again", 0.0, resampled=True, served_versions=(0,))]
    await send(settings, SCORES.name, [(b"k", encode(score)) for score in scores])


async def locations(settings: StreamSettings) -> list[tuple[Location, Trajectory]]:
    name = TRAJECTORIES.full_name(settings.namespace)
    places = {TopicPartition(name, number): 0 for number in range(2)}
    async with aclosing(read_from(settings.kafka, places)) as records:
        raw = [record async for record in records]
    return [
        (Location(topic=TRAJECTORIES.name, partition=record.partition, offset=record.offset), decode(record.value))
        for record in raw
    ]
