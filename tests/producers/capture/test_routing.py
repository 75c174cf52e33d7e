"""An episode's calls ask for the version that was decided for it, and the application's name where that fails."""

from typing import Any

import httpx
import pytest

from rollbus.producers import MemorySink, init
from rollbus.producers.capture.routing import VersionRouting
from rollbus.producers.recorder import Recorder
from rollbus.schemas.records.delivery import PolicyDecision, is_drawn
from rollbus.schemas.routing import Router
from tests.producers.openai_server import Server, completion

DRAWN_EPISODE, OTHER_EPISODE = (
    next(f"e{n}" for n in range(99) if is_drawn("agent", 2, f"e{n}", 0.5) is want) for want in (True, False)
)


def recording() -> tuple[Recorder, Router]:
    recorder = init(sink=MemorySink(), route=["agent"])
    routing = recorder.outbox.routed.__self__  # type: ignore[union-attr]
    assert isinstance(routing, VersionRouting)
    return recorder, routing.router


def make_decision(number: int, **fields: Any) -> PolicyDecision:
    defaults: dict[str, Any] = {"action": "canary", "serving": 1, "canary": 2, "share": 0.5, "reason": "r"}
    return PolicyDecision(model="agent", run_id="main", number=number, decided_at_ms=0, **(defaults | fields))


def model_asked(server: Server, recorder: Recorder, episode: str, model: str = "agent") -> str:
    """The model that the server was asked for in an episode."""
    client = recorder.wrap(server.client())
    with recorder.episode(task="t", episode_id=episode):
        client.chat.completions.create(model=model, messages=[{"role": "user", "content": "x"}])
    return str(server.requests[-1]["model"])


def test_a_routed_call_asks_for_the_version_of_its_episode(server: Server) -> None:
    assert model_asked(server, init(sink=MemorySink()), DRAWN_EPISODE) == "agent"
    recorder, router = recording()
    assert model_asked(server, recorder, "e0") == "agent", "nothing is known yet"
    router.use(make_decision(1))
    assert (model_asked(server, recorder, DRAWN_EPISODE), model_asked(server, recorder, OTHER_EPISODE)) == (
        "agent@2",
        "agent@1",
    )
    assert model_asked(server, recorder, DRAWN_EPISODE, "agent@0") == "agent@0"
    assert model_asked(server, recorder, DRAWN_EPISODE, "gpt") == "gpt"
    router.use(make_decision(2, action="quarantine", canary=None, share=0.0))
    assert model_asked(server, recorder, DRAWN_EPISODE) == "agent@1"


@pytest.mark.parametrize("mode", ["force", "passive"])
def test_a_version_that_the_server_lacks_costs_the_application_nothing(server: Server, mode: str) -> None:
    recorder, router = recording()
    router.use(make_decision(1))
    server.script = lambda body: httpx.Response(404, json={"error": {}}) if "@" in body["model"] else completion()
    client = recorder.wrap(server.client(), logprobs=mode)
    with recorder.episode(task="t", episode_id=DRAWN_EPISODE):
        client.chat.completions.create(model="agent", messages=[{"role": "user", "content": "x"}])
    assert [request["model"] for request in server.requests] == ["agent@2", "agent"]
    assert recorder.counters["route_unknown"] == 1
