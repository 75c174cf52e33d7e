"""The agent behind a small web service: it names the team for each ticket, and keeps where each ticket ended.

    POST /tickets {order, text}     → {team}; an episode, with the order's number as its alias
    PUT  /tickets/ORDER/team {team} → a colleague settles where the ticket belongs
    GET  /tickets/ORDER/team        → {team}, once it is settled; null if that takes longer than WAIT_S
    GET  /orders/ORDER              → {state}: what the shop's system says of the order

`again` is the same agent for `rollbus resample run`: further attempts at a ticket, off the hot path. Their reward is
whether they name the team that the ticket ended with.

Run as `python -m rollbus.demo.routing.desk SETTINGS_AS_JSON`.
"""

import asyncio
import json
import os
import sys
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import cache
from urllib.parse import quote

import httpx
import uvicorn
from fastapi import FastAPI
from openai import AsyncOpenAI
from pydantic import BaseModel

import rollbus.producers
from rollbus.demo.routing.tasks import TASKS, look_up_in
from rollbus.demo.traffic import local_client
from rollbus.resample import Attempt
from rollbus.runtime.credentials import read_token
from rollbus.terminal.log_lines import log_to_stderr

WAIT_S = 30.0
"""Longest wait for a verdict; most tickets have theirs after a few seconds, some never."""
DESK_VARIABLE, MODEL_VARIABLE = "ROUTING_DESK_URL", "ROUTING_MODEL_URL"
"""Where `again`, which `rollbus resample run` imports, finds the desk and the model."""


@dataclass(frozen=True, slots=True)
class DeskSettings:
    """The settings of the desk's process."""

    port: int
    model_url: str
    """Ends in /v1."""
    bootstrap_servers: str
    namespace: str
    model: str = "agent"
    task: str = "routing"
    seed: int = 0
    """Of the tickets, by which the shop's system knows their orders."""


class NewTicket(BaseModel):
    order: str
    text: str


class Settled(BaseModel):
    team: str


class Routed(BaseModel):
    team: str | None


class Looked(BaseModel):
    state: str


class Settlements:
    """Where tickets ended, by order; a later word replaces an earlier one."""

    def __init__(self) -> None:
        self._teams: dict[str, str] = {}
        self._settled: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)

    def settle(self, order: str, team: str) -> None:
        self._teams[order] = team
        self._settled[order].set()

    async def wait(self, order: str, limit_s: float) -> str | None:
        """Return the team once it is settled; None if that takes longer."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._settled[order].wait(), limit_s)
        return self._teams.get(order)


def start_recorder(settings: DeskSettings) -> rollbus.producers.Recorder:
    """Return a recorder that notes of log-probs what the task's server reports."""
    return rollbus.producers.init(
        bootstrap_servers=settings.bootstrap_servers,
        namespace=settings.namespace,
        producer="routing-desk",
        environment="demo",
        logprob_mode=TASKS[settings.task].logprobs_mode,
        report_interval_s=5.0,
    )


def build_desk(settings: DeskSettings) -> FastAPI:
    """Return the web service; it records as long as it runs."""
    recorder = start_recorder(settings)
    url = settings.model_url
    client = recorder.wrap(local_client(url, read_token(url)))
    settlements, task = Settlements(), TASKS[settings.task]
    look_up = look_up_in(task.traffic, settings.seed)

    @asynccontextmanager
    async def recording(_: FastAPI) -> AsyncIterator[None]:
        yield
        await asyncio.to_thread(recorder.close, 20.0)

    desk = FastAPI(lifespan=recording)

    @desk.post("/tickets")
    async def route(ticket: NewTicket) -> Routed:
        async with recorder.episode(task=task.name, agent="router", labels={"order": ticket.order}) as episode:
            episode.alias(ticket.order)
            chat = task.messages(ticket.text)
            return Routed(team=await task.ask(client, settings.model, chat, task.temperature, look_up))

    @desk.put("/tickets/{order}/team")
    async def settle(order: str, settled: Settled) -> None:
        settlements.settle(order, settled.team)

    @desk.get("/tickets/{order}/team")
    async def read_settled(order: str) -> Routed:
        return Routed(team=await settlements.wait(order, WAIT_S))

    @desk.get("/orders/{order}")
    async def read_order(order: str) -> Looked:
        return Looked(state=await look_up(order))

    return desk


async def again(attempt: Attempt) -> None:
    """Answer a ticket once more, by the newest weights, after its verdict is there; without one, not at all."""
    desk, client = _connections()
    settled = (await desk.get(f"/tickets/{attempt.labels['order']}/team")).json()["team"]
    if settled is not None:
        task = TASKS[attempt.task]
        team = await task.ask(attempt.wrap(client), attempt.model, attempt.messages, task.temperature, _look_up)
        attempt.episode.reward(float(team == settled))


async def _look_up(order: str) -> str:
    desk, _ = _connections()
    return str((await desk.get(f"/orders/{quote(order, safe='')}")).json().get("state", ""))


@cache
def _connections() -> tuple[httpx.AsyncClient, AsyncOpenAI]:
    """Return a client of the desk and one of the model, for all attempts of this process."""
    unlimited = httpx.Limits(max_connections=None)
    model_url = os.environ[MODEL_VARIABLE]
    return (
        httpx.AsyncClient(base_url=os.environ[DESK_VARIABLE], timeout=WAIT_S + 10, limits=unlimited, trust_env=False),
        local_client(model_url, read_token(model_url)),
    )


if __name__ == "__main__":
    log_to_stderr()
    desk_settings = DeskSettings(**json.loads(sys.argv[1]))
    uvicorn.run(
        build_desk(desk_settings), host="127.0.0.1", port=desk_settings.port, log_level="warning", log_config=None
    )
