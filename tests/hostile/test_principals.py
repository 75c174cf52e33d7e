"""An agent's key opens what an agent needs, training takes the owner's, and nobody speaks in another's name."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from rollbus.producers import MemorySink, Recorder, init
from rollbus.producers.imports.http import make_door as ingest_door
from rollbus.producers.proxy.app import Proxy
from rollbus.producers.sending.kafka_sink import KafkaSink
from rollbus.producers.sending.sink import Outbound
from rollbus.runtime.http.guard import Door as HttpDoor
from rollbus.runtime.http.guard import Guard
from rollbus.runtime.kafka.connection import KafkaConnection
from rollbus.runtime.principals import PrincipalBook, end, issue, root_of
from rollbus.schemas.codec import encode
from rollbus.schemas.errors import ConfigurationError
from rollbus.schemas.records.config import AssemblyConfig
from rollbus.schemas.records.events import EpisodeStarted
from rollbus.schemas.records.trajectories import Trajectory
from rollbus.streams.stages.assembly.stage import AssemblyStage
from rollbus.trainer.art_server.control.server import control_door
from rollbus.trainer.art_server.endpoint.endpoint import model_door
from tests.builders import make_episode, make_reward
from tests.hostile.attacker import CHECKERS_KEY, KEY, Door, keys

OWNERS = "the-owners-token"
HOST = {"host": "127.0.0.1"}


@pytest.fixture
def secrets(tmp_path: Path) -> Path:
    return tmp_path / "secrets"


@pytest.fixture
def tokens(secrets: Path) -> dict[str, str]:
    """A token of each kind."""
    now = datetime.now(UTC)
    token_by_kind = {
        "agent": issue(secrets, "agent-7", ("record", "feedback"), now),
        "recorder": issue(secrets, "recorder", ("record",), now),
        "reporter": issue(secrets, "reporter", ("feedback",), now),
        "ended": issue(secrets, "gone", ("record", "feedback"), now),
        "owner": OWNERS,
        "nobody": "rb.agent-7.fr.1.forged",
    }
    end(secrets, "gone", now)
    return token_by_kind


async def statuses(http_door: HttpDoor, path: str, tokens: dict[str, str], method: str = "POST") -> dict[str, int]:
    """What a door answers each kind of token, before a server that answers 200."""

    async def answer(request: Any) -> PlainTextResponse:
        return PlainTextResponse("ok")

    app = Guard(Starlette(routes=[Route(path, answer, methods=[method])]), http_door)
    status_by_kind = {}
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1") as http:
        for kind, token in tokens.items():
            headers = {"authorization": f"Bearer {token}", "content-type": "application/json"}
            status_by_kind[kind] = (await http.request(method, path, headers=headers, content=b"{}")).status_code
    return status_by_kind


RECORDING = {"agent": 200, "recorder": 200, "reporter": 403, "ended": 401, "owner": 200, "nobody": 401}
REPORTING = {"agent": 200, "recorder": 403, "reporter": 200, "ended": 401, "owner": 200, "nobody": 401}
OWNING = {"agent": 403, "recorder": 403, "reporter": 403, "ended": 401, "owner": 200, "nobody": 401}


async def test_each_door_opens_for_its_principals(secrets: Path, tokens: dict[str, str]) -> None:
    book = PrincipalBook(secrets)
    model, control = model_door(OWNERS, find_principal=book), control_door(OWNERS, find_principal=book)
    assert await statuses(model, "/v1/chat/completions", tokens) == RECORDING
    assert await statuses(control, "/rollbus/v1/steps", tokens) == OWNING
    assert await statuses(ingest_door("127.0.0.1", OWNERS, book), "/v1/traces", tokens) == RECORDING
    recorder = init(sink=MemorySink())
    proxy = Proxy(recorder, "http://server/v1", httpx.AsyncClient(), token=OWNERS, find_principal=book)
    door = proxy.door("127.0.0.1")
    assert await statuses(door, "/v1/chat/completions", tokens) == RECORDING
    assert await statuses(door, "/rollbus/episodes", tokens) == RECORDING
    assert await statuses(door, "/rollbus/episodes/e1/v1/chat/completions", tokens) == RECORDING
    assert await statuses(door, "/rollbus/episodes/e1/reward", tokens) == REPORTING
    assert await statuses(door, "/rollbus/feedback", tokens) == REPORTING
    recorder.close()
    await proxy.http.aclose()


async def test_the_proxy_records_each_principal_apart_and_hides_its_token(
    secrets: Path, tokens: dict[str, str]
) -> None:
    sinks = dict[str, MemorySink]()
    seen: list[httpx.Request] = []

    def upstream(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        return httpx.Response(200, json={"choices": []})

    def record_as(token: str) -> Recorder:
        sinks[token] = MemorySink()
        return init(sink=sinks[token])

    main = MemorySink()
    proxy = Proxy(
        init(sink=main),
        "http://server/v1",
        httpx.AsyncClient(transport=httpx.MockTransport(upstream)),
        token=OWNERS,
        upstream_key="the-servers-key",
        find_principal=PrincipalBook(secrets),
        record_as=record_as,
    )
    async with httpx.AsyncClient(transport=httpx.ASGITransport(proxy.app()), base_url="http://127.0.0.1") as http:
        mine, other = ({"authorization": f"Bearer {tokens[kind]}"} for kind in ("agent", "recorder"))
        opened = (await http.post("/rollbus/episodes", json={"task": "play"}, headers=mine)).json()
        path = f"/rollbus/episodes/{opened['id']}"
        assert (await http.post(f"{path}/v1/models", headers=other, json={})).status_code == 404, "another's episode"
        assert (await http.post(f"{path}/v1/chat/completions", headers=mine, json={"model": "a"})).status_code == 200
        assert (await http.post(f"{path}/end", json={}, headers=mine)).status_code == 204
        metrics = (await http.get("/rollbus/metrics")).text
        assert "rollbus_producer_episodes_started_total 1" in metrics, "what a principal records counts, too"
    for desk in (proxy.desk, *proxy._desks.values()):
        await desk.close()
    assert seen[-1].headers["authorization"] == "Bearer the-servers-key"
    assert not any(tokens["agent"] in value for request in seen for value in request.headers.values())
    starts = {
        token: sum(isinstance(record, EpisodeStarted) for record in sink.records()) for token, sink in sinks.items()
    }
    assert {token for token, count in starts.items() if count} == {tokens["agent"]}
    assert not any(isinstance(record, EpisodeStarted) for record in main.records())


async def trajectory_of(door: Door, token: str | None, *, forged: bool = False) -> Trajectory:
    """Write an episode as the SDK does with a token; return its trajectory."""
    sink = KafkaSink(KafkaConnection(), token=token)
    records = [make_reward("e1", 0.5, key="r"), *make_episode("e1", turns=1, reward=None)]
    outputs: list[Any] = []
    for record in records:
        out = Outbound(door.topic, b"e1", encode(record), 0)
        headers = [(name, value[:-1] + b"x" if forged else value) for name, value in sink._signature(out)]
        outputs += await door.write(record, headers)
    (assembled,) = [output for output in outputs if isinstance(output, Trajectory)]
    return assembled


@pytest.mark.parametrize(
    ("kind", "episode_by", "reward_by"),
    [("agent", "agent-7", "agent-7"), ("recorder", "recorder", ""), ("reporter", "", "reporter"), (None, "", "")],
)
async def test_an_episode_and_its_rewards_name_their_principals(
    secrets: Path, tokens: dict[str, str], kind: str | None, episode_by: str, reward_by: str
) -> None:
    signing = keys(KEY, principals=root_of(secrets).decode())
    assembled = await trajectory_of(Door(AssemblyStage(AssemblyConfig()), signing), tokens[kind] if kind else None)
    assert (assembled.principal, [reward.principal for reward in assembled.rewards]) == (episode_by, [reward_by])


async def test_a_forged_name_is_not_taken(secrets: Path, tokens: dict[str, str]) -> None:
    signing = keys(KEY, principals=root_of(secrets).decode())
    assembled = await trajectory_of(Door(AssemblyStage(AssemblyConfig()), signing), tokens["agent"], forged=True)
    assert (assembled.principal, [reward.principal for reward in assembled.rewards]) == ("", [""])


async def test_an_episode_of_several_signers_names_all_of_them() -> None:
    """With an unsigned part it has no principal."""
    signing = keys(KEY, sources={"agent-7": CHECKERS_KEY, "stranger": "the-key-of-a-stranger"})
    for adder, principal in (("stranger", "agent-7,stranger"), ("agent-7", "agent-7"), (None, "")):
        door, outputs = Door(AssemblyStage(AssemblyConfig()), signing), list[Any]()
        events = make_episode("e1", turns=2, reward=None)
        for place, event in enumerate(events):
            signer = adder if place == 2 else "agent-7"
            outputs += await (door.write(event) if signer is None else door.write_signed(event, signer))
        (trajectory,) = [record for record in outputs if isinstance(record, Trajectory)]
        assert trajectory.principal == principal


def test_a_token_without_a_principal_is_refused_at_the_start() -> None:
    with pytest.raises(ConfigurationError, match="token create"):
        init(bootstrap_servers="127.0.0.1:1", token="the-owners-token")
