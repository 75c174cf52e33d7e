"""An agent behind a web service that learns from late verdicts: it names the team that answers a support ticket.

    POST /tickets {order, text, task} → the team, or null; an episode whose alias is the order's number
    POST /tickets/ORDER/messages {text} → what the customer says next; a person reads it, and rollbus learns from it
    PUT  /tickets/ORDER/team {team}   → the ticket has ended with this team
    GET  /tickets/ORDER/team          → the team, once the ticket has ended; null after WAIT_S

Each ticket is answered once. `again` is the same agent for `rollbus resample`: seven more attempts at a ticket, off the
hot path, once it has ended. To run it, in a copy of this folder:

    export ROLLBUS_CONFIG=rollbus.yaml
    rollbus model fetch smollm2
    rollbus up
    rollbus topics create

Then each of these in a terminal of its own, with the same ROLLBUS_CONFIG:

    rollbus worker run
    rollbus trainer run
    rollbus sink run
    uvicorn --factory desk:build_desk --port 8080
    rollbus resample run desk:again --concurrency 256
    python customers.py    # or: python customers.py --task orders

Without any verdict, from what customers say next alone, and from one attempt at each ticket: take words.yaml as
ROLLBUS_CONFIG, leave out `rollbus resample`, and let customers answer by `python customers.py --words`. Then
`rollbus status` says how many turns they answered, and what of it was clear.

And look at what was learnt from it:

    rollbus trainer steps
    rollbus sql run reward-by-policy-version
    rollbus sql run lineage-of-step
    rollbus sql run events-of-step
    rollbus trainer rewards

For a task of your own, change agent.py; your users take the place of customers.py, and your systems that of shop.py.
"""

import asyncio
import os
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cache
from typing import Literal

import httpx
from agent import MODEL, ask, begin_chat
from fastapi import FastAPI
from openai import AsyncOpenAI
from pydantic import BaseModel

import rollbus
from rollbus.resample import Attempt

KAFKA = os.environ.get("KAFKA_BOOTSTRAP_SERVERS", "127.0.0.1:9092")
ENDPOINT = os.environ.get("OPENAI_BASE_URL", "http://127.0.0.1:8000/v1")
DESK = os.environ.get("DESK_URL", "http://127.0.0.1:8080")
WAIT_S = 30.0
"""Longest wait for a ticket's end; some never end."""


class Ticket(BaseModel):
    """What a customer writes."""

    order: str
    text: str
    task: Literal["routing", "orders"] = "routing"
    """`routing`: the text says what is wrong. `orders`: it only names the order, which the agent looks up."""


class Message(BaseModel):
    """What a customer says after the answer."""

    text: str


class Ended(BaseModel):
    """What became of a ticket."""

    team: str


def build_desk() -> FastAPI:
    """Return the web service; it records as long as it runs."""
    recorder = rollbus.init(bootstrap_servers=KAFKA, producer="desk", logprob_mode="processed")
    client = recorder.wrap(open_client())
    teams_by_order: defaultdict[str, asyncio.Future[str]] = defaultdict(
        lambda: asyncio.get_running_loop().create_future()
    )

    @asynccontextmanager
    async def recording(_: FastAPI) -> AsyncIterator[None]:
        yield
        await asyncio.to_thread(recorder.close)

    desk = FastAPI(lifespan=recording)

    @desk.post("/tickets")
    async def route(ticket: Ticket) -> str | None:
        fields = {"agent": "router", "labels": {"order": ticket.order}, "conversation": ticket.order}
        async with recorder.episode(task=ticket.task, message=ticket.text, **fields) as episode:
            episode.alias(ticket.order)
            return await ask(client, MODEL, ticket.task, begin_chat(ticket.task, ticket.text))

    @desk.post("/tickets/{order}/messages")
    async def hear(order: str, message: Message) -> None:
        recorder.feedback(conversation=order, signal="reply", comment=message.text)

    @desk.put("/tickets/{order}/team")
    async def end(order: str, ended: Ended) -> None:
        if teams_by_order[order].done():  # opened again and ended again: a future takes one result
            del teams_by_order[order]
        teams_by_order[order].set_result(ended.team)

    @desk.get("/tickets/{order}/team")
    async def read_team(order: str) -> str | None:
        await asyncio.wait([teams_by_order[order]], timeout=WAIT_S)
        return teams_by_order[order].result() if teams_by_order[order].done() else None

    return desk


async def again(attempt: Attempt) -> None:
    """Answer a ticket once more with the newest weights, once it has ended; skip it if it does not end in WAIT_S."""
    desk, client = open_clients()
    team = (await desk.get(f"/tickets/{attempt.labels['order']}/team")).raise_for_status().json()
    if team is not None:
        named_team = await ask(attempt.wrap(client), attempt.model, attempt.task, attempt.messages)
        attempt.episode.reward(float(named_team == team))


@cache
def open_clients() -> tuple[httpx.AsyncClient, AsyncOpenAI]:
    """Return a client of the desk and one of the model, for all attempts of this process."""
    limits = httpx.Limits(max_connections=None)
    return httpx.AsyncClient(base_url=DESK, timeout=WAIT_S + 10, limits=limits), open_client()


def open_client() -> AsyncOpenAI:
    """Return a client of the model."""
    return AsyncOpenAI(base_url=ENDPOINT, api_key=rollbus.read_token(ENDPOINT), max_retries=4)
