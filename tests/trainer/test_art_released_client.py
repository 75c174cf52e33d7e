"""The client of a released ART server, against a server that answers what the test says."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from rollbus.schemas.errors import RejectedError
from rollbus.schemas.tokens import encode_logprobs, encode_token_ids
from rollbus.trainer.backends.art_released_client import ReleasedArtClient
from rollbus.trainer.backends.guards import Limits
from rollbus.trainer.backends.protocol import Said, TrainConfig, TrainRequest, TrainTrajectory, TurnTokens

TRAINED = {"loss": 0.25, "num_gradient_steps": 1}


class Server:
    """Counts its steps, and answers an update with these lines."""

    def __init__(self, *lines: dict[str, Any]) -> None:
        self.step, self.updates, self.lines = 0, 0, lines

    def __call__(self, request: httpx.Request) -> httpx.Response:
        if request.url.path == "/_get_step":
            return httpx.Response(200, json=self.step)
        self.updates += 1
        self.step += 1
        return httpx.Response(200, text="".join(json.dumps(line) + "\n" for line in self.lines))


def client(server: Callable[[httpx.Request], httpx.Response], folder: Path) -> ReleasedArtClient:
    return ReleasedArtClient(
        "http://art",
        model="agent",
        base_model="base",
        project="p",
        folder=folder,
        limits=Limits(64, 64),
        render=lambda messages: [1, 2],
        transport=httpx.MockTransport(server),
    )


def batch(name: str, base: int) -> TrainRequest:
    turn = TurnTokens(encode_token_ids([1, 2]), encode_token_ids([3]), encode_logprobs([-0.5]), policy_version=0)
    said = (Said('{"role": "user", "content": "x"}'), Said('{"role": "assistant", "content": "y"}', 0))
    members = tuple(TrainTrajectory(f"{name}-{i}", "g", 0.0, float(i), (turn,), said) for i in range(2))
    return TrainRequest(
        name, "main", "agent", base, members, TrainConfig(advantages="art", aggregation="trajectory_mean")
    )


async def test_a_torn_last_line_of_the_journal_is_cut_off_and_writing_goes_on(tmp_path: Path) -> None:
    server = Server(TRAINED)
    one = client(server, tmp_path)
    first = await one.wait(await one.submit(batch("b1", 0)))
    journal = tmp_path / "journal.jsonl"
    journal.write_bytes(journal.read_bytes() + b'{"event": "started", "batch_ha')
    again = client(server, tmp_path)
    assert await again.journal("b1") == first
    second = await again.wait(await again.submit(batch("b2", 1)))
    assert await client(server, tmp_path).journal("b2") == second


@pytest.mark.parametrize("lines", [(), ({"num_gradient_steps": 0},)], ids=["no line", "no gradient step"])
async def test_a_step_that_trained_nothing_is_never_taken_for_the_batchs(
    tmp_path: Path, lines: tuple[dict[str, Any], ...]
) -> None:
    server = Server(*lines)
    one = client(server, tmp_path)
    with pytest.raises(RejectedError, match="trained nothing of batch b1"):
        await one.wait(await one.submit(batch("b1", 0)))
    for each in (one, client(server, tmp_path)):
        with pytest.raises(RejectedError, match="trained nothing of batch b1"):
            await each.journal("b1")
        with pytest.raises(RejectedError, match="trained nothing of batch b1"):
            await each.submit(batch("b1", 0))
    assert server.updates == 1


async def test_an_error_is_told_wherever_among_the_lines_it_stands(tmp_path: Path) -> None:
    one = client(Server({"error": "no memory"}, TRAINED), tmp_path)
    with pytest.raises(RejectedError, match="no memory"):
        await one.wait(await one.submit(batch("b1", 0)))
