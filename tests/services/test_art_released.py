"""Our client drives ART 0.5.7, the last release to train over HTTP: its own routes and validation."""

import json
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from rollbus.local.ports import free_port
from rollbus.schemas.errors import RejectedError, UnavailableError
from rollbus.schemas.tokens import decode_logprobs, decode_token_ids, encode_logprobs, encode_token_ids
from rollbus.trainer.backends.art_released_client import ReleasedArtClient
from rollbus.trainer.backends.guards import Limits
from rollbus.trainer.backends.protocol import Said, TrainConfig, TrainRequest, TrainTrajectory, TurnTokens
from tests.services import released_art

pytestmark = pytest.mark.services

CONFIG = TrainConfig(
    learning_rate=2e-6, advantages="art", aggregation="trajectory_mean", kl_coefficient=0.01, kl_estimator="k3"
)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("released")


@pytest.fixture(scope="module")
def url(data: Path) -> Iterator[str]:
    port = free_port()
    process = released_art.start("0.5.7", "server.py", str(port), str(data))
    found = f"http://127.0.0.1:{port}"
    try:
        deadline = time.monotonic() + 240
        while not _answers(found):
            assert process.poll() is None, process.communicate()[1]
            assert time.monotonic() < deadline, "the released server does not answer"
            time.sleep(0.1)
        yield found
    finally:
        process.kill()
        process.communicate()


def _answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/healthcheck").status_code == 200
    except httpx.HTTPError:
        return False


@pytest.fixture(scope="module")
def tokenizer(art_base_model: Path) -> Any:
    from rollbus.trainer.service.tokenizer import load_tokenizer

    return load_tokenizer(art_base_model)


@pytest.fixture
async def client(url: str, tokenizer: Any, art_base_model: Path, data: Path) -> AsyncIterator[ReleasedArtClient]:
    one = new_client(url, tokenizer, art_base_model, data)
    await one.start()
    yield one
    await one.close()


def new_client(url: str, tokenizer: Any, base_model: Path, data: Path) -> ReleasedArtClient:
    from rollbus.trainer.service.tokenizer import render_chat

    return ReleasedArtClient(
        url,
        model="agent",
        base_model=str(base_model),
        project="p",
        folder=data / "journal",
        limits=Limits(128, 384),
        render=lambda messages: render_chat(tokenizer, messages, None),
    )


def chat(tokenizer: Any, name: str, reward: float, answers: tuple[str, ...] = ("a", "b")) -> TrainTrajectory:
    """Turns as an agent records them; each prompt is the template's."""
    from rollbus.trainer.service.tokenizer import render_chat

    messages: list[Any] = []
    said: list[Said] = []
    turns: list[TurnTokens] = []
    for number, answer in enumerate(answers):
        messages.append({"role": "user", "content": f"choose {number}"})
        said.append(Said(json.dumps(messages[-1])))
        sampled = [*tokenizer.encode(answer), tokenizer.eos_token_id]
        turns.append(
            TurnTokens(
                encode_token_ids(render_chat(tokenizer, messages, None)),
                encode_token_ids(sampled),
                encode_logprobs([-0.5 - number] * len(sampled)),
                policy_version=0,
            )
        )
        messages.append({"role": "assistant", "content": answer})
        said.append(Said(json.dumps(messages[-1]), number))
    return TrainTrajectory(name, "g", 0.0, reward, tuple(turns), tuple(said))


def batch(name: str, base: int, *members: TrainTrajectory, **config: Any) -> TrainRequest:
    return TrainRequest(name, "main", "agent", base, members, replace(CONFIG, **config))


async def test_a_batch_passes_its_validation_and_arrives_as_it_was_recorded(
    client: ReleasedArtClient, tokenizer: Any, data: Path
) -> None:
    assert await client.is_healthy()
    base = await client.current_version()
    members = [chat(tokenizer, "t0", 0.0, ("a",)), chat(tokenizer, "t1", 1.0)]
    edited = replace(members[1], trajectory_id="t2", conversation=members[1].conversation[2:])
    textless = replace(members[1], trajectory_id="t3", conversation=())
    request = batch("b1", base, *members, edited, textless)
    result = await client.wait(await client.submit(request))
    assert (result.state, result.version, set(result.trained_ids)) == ("completed", base + 1, {"t0", "t1"})
    assert dict(result.dropped) == {"t2": "rejected_by_backend", "t3": "rejected_by_backend"}
    assert result.metrics["loss"] == 0.25
    seen = json.loads((data / f"step-{base + 1}.json").read_bytes())
    assert seen["config"] == {"learning_rate": 2e-6, "beta": 0.01}
    assert (seen["dev_config"]["ppo"], seen["dev_config"]["epsilon_high"]) == (False, 4.0)
    for member, row in zip(members, seen["rows"], strict=True):
        assert row["reward"] == member.reward
        assert [each["role"] for each in row["chat"][::2]] == ["user"] * len(member.turns)
        for turn, (token_ids, logprobs) in zip(member.turns, row["chat"][1::2], strict=True):
            assert token_ids == decode_token_ids(turn.completion_token_ids).tolist()
            assert logprobs == decode_logprobs(turn.logprobs).tolist()


async def test_a_batch_is_sent_once_and_its_result_outlives_the_client(
    client: ReleasedArtClient, url: str, tokenizer: Any, art_base_model: Path, data: Path
) -> None:
    base = await client.current_version()
    request = batch("b2", base, chat(tokenizer, "t0", 0.0), chat(tokenizer, "t1", 1.0))
    first = await client.wait(await client.submit(request))
    assert await client.wait(await client.submit(request)) == first
    again = new_client(url, tokenizer, art_base_model, data)
    assert await again.journal("b2") == first
    assert await again.current_version() == base + 1
    assert (await again.versions()).known[-1].batch_hash == "b2"
    await again.close()


async def test_a_batch_that_a_killed_client_had_sent_is_found_by_the_servers_step(
    client: ReleasedArtClient, url: str, tokenizer: Any, art_base_model: Path, data: Path
) -> None:
    base = await client.current_version()
    request = batch("b3", base, chat(tokenizer, "t0", 0.0), chat(tokenizer, "t1", 1.0))
    first = await client.wait(await client.submit(request))
    journal = data / "journal" / "journal.jsonl"
    *kept, done = journal.read_bytes().splitlines(keepends=True)
    assert b"done" in done
    journal.write_bytes(b"".join(kept))
    again = new_client(url, tokenizer, art_base_model, data)
    found = await again.journal("b3")
    assert found is not None
    assert (found.version, found.trained_ids) == (first.version, first.trained_ids)
    await again.close()


async def test_what_it_cannot_do_is_refused_and_nothing_is_sent(client: ReleasedArtClient, tokenizer: Any) -> None:
    base = await client.current_version()
    members = [chat(tokenizer, "t0", 0.0), chat(tokenizer, "t1", 1.0)]
    with pytest.raises(RejectedError, match="set `advantages: art`"):
        await client.submit(batch("b4", base, *members, advantages="given"))
    with pytest.raises(RejectedError, match=f"is at {base}"):
        await client.submit(batch("b5", base + 1, *members))
    with pytest.raises(RejectedError, match="cannot go to 99"):
        await client.promote(99)
    flat = batch("b6", base, *(replace(member, reward=1.0) for member in members))
    skipped = await client.wait(await client.submit(flat))
    assert (skipped.state, set(skipped.dropped.values())) == ("skipped", {"no_signal"})
    assert await client.current_version() == base


async def test_a_failed_update_is_told_and_can_be_tried_again(
    client: ReleasedArtClient, tokenizer: Any, data: Path
) -> None:
    base = await client.current_version()
    request = batch("b7", base, chat(tokenizer, "t0", 0.0), chat(tokenizer, "t1", 1.0))
    broken = data / "broken"
    broken.touch()
    with pytest.raises(UnavailableError, match="broke off the update"):
        await client.wait(await client.submit(request))
    broken.unlink()
    assert await client.journal("b7") is None
    assert (await client.wait(await client.submit(request))).version == base + 1


async def test_a_body_that_its_validation_refuses_is_told_as_it_is(client: ReleasedArtClient, tokenizer: Any) -> None:
    base = await client.current_version()
    request = batch("b8", base, chat(tokenizer, "t0", 0.0), chat(tokenizer, "t1", 1.0), learning_rate="fast")
    with pytest.raises(RejectedError, match=r"answered 422.*learning_rate"):
        await client.wait(await client.submit(request))
    assert await client.current_version() == base
