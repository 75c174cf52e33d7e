"""The task with a tool and two turns: a ticket names an order and no reason, and the order's state decides the team.

ticket → the model calls `look_up` with the order's number → the shop's system answers with a state → a team
"""

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any

import yaml
from openai import AsyncOpenAI

from rollbus.demo.routing.prompt import LookUp, example_order, read_team
from rollbus.demo.routing.tickets import NO_ORDER, TEAMS, Ticket, choose

TASK = "orders"
CALL_TOKENS, ANSWER_TOKENS = 40, 1
"""Most tokens of the call, which takes about 30, and of a team's name."""
MOST_DIGITS = 20
"""Of an order: no demo brings more tickets."""
LOOK_UP: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "look_up",
        "description": "Return the state of an order.",
        "parameters": {"type": "object", "properties": {"order": {"type": "string"}}, "required": ["order"]},
    },
}
SYSTEM = f"Look the order up. Then answer with one word: {', '.join(TEAMS[:-1])} or {TEAMS[-1]}."
EXAMPLES = (
    ("I need help with order 904417", "904417", "invoice is wrong", "payment"),
    ("what about 215083", "215083", "parcel has not come", "delivery"),
    ("order 680352, please", "680352", "shoes do not fit", "return"),
    ("it is about 137946", "137946", "password lost", "account"),
)


@dataclass(frozen=True, slots=True)
class Orders:
    """Tickets, and what the shop's system says of their orders."""

    openings: Sequence[str]
    states: Mapping[str, Sequence[str]]

    def ticket(self, seed: int, number: int) -> Ticket:
        """Return the ticket of a number; every team is equally likely, and `moment` holds the order's state."""
        rng = random.Random(f"orders:{seed}:{number}")
        order = f"{rng.randrange(10, 100)}{number:04}"
        team = rng.choice(TEAMS)
        state = choose(rng.choice(self.states[team]), rng)
        text = choose(rng.choice(self.openings), rng).replace("{order}", order)
        return Ticket(order, text, team, state)

    def state(self, seed: int, order: str) -> str:
        """Return the state of an order; `NO_ORDER` if the shop has none of that number.

        The digits of an order after the first two are its ticket's number, so that nothing has to be stored.
        """
        if not 6 <= len(order) <= MOST_DIGITS or not (order.isascii() and order.isdigit()):
            return NO_ORDER
        ticket = self.ticket(seed, int(order[2:]))
        return ticket.moment if ticket.order == order else NO_ORDER


def messages(text: str) -> list[dict[str, Any]]:
    """Return the chat. The ticket decides which example comes last, because a small model repeats the last answer."""
    chat: list[dict[str, Any]] = [{"role": "system", "content": SYSTEM}]
    for number, (question, order, state, team) in enumerate(example_order(EXAMPLES, text)):
        chat.append({"role": "user", "content": question})
        chat += call_messages(f"call_{number}", json.dumps({"order": order}), state)
        chat.append({"role": "assistant", "content": team})
    return [*chat, {"role": "user", "content": text}]


def call_messages(call_id: str, arguments: str, state: str) -> list[dict[str, Any]]:
    """Return a call of the tool and its answer as messages."""
    function = {"name": "look_up", "arguments": arguments}
    call = {"id": call_id, "type": "function", "function": function}
    return [
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": call_id, "content": state},
    ]


async def ask(
    client: AsyncOpenAI, model: str, chat: list[dict[str, Any]], temperature: float, look_up: LookUp
) -> str | None:
    """Return the team that the model names after one look-up; None for any other answer, or without a call."""
    parameters: Any = {"model": model, "tools": [LOOK_UP], "temperature": temperature}
    first = await client.chat.completions.create(messages=chat, max_completion_tokens=CALL_TOKENS, **parameters)  # type: ignore[arg-type]
    calls = first.choices[0].message.tool_calls or []
    if not calls or calls[0].type != "function":
        return None
    call_id, arguments = calls[0].id, calls[0].function.arguments
    chat = [*chat, *call_messages(call_id, arguments, await look_up(_read_order(arguments)))]
    second = await client.chat.completions.create(messages=chat, max_completion_tokens=ANSWER_TOKENS, **parameters)  # type: ignore[arg-type]
    return read_team(second.choices[0].message.content)


def _read_order(arguments: str) -> str:
    """Return the order that a call names; empty for arguments of another shape."""
    try:
        return str(json.loads(arguments)["order"])
    except (ValueError, KeyError, TypeError):
        return ""


def _load(name: str) -> Orders:
    text = resources.files(__package__).joinpath("orders.yaml").read_text(encoding="utf-8")
    grammar = yaml.safe_load(text)[name]
    return Orders(tuple(grammar["openings"]), {team: tuple(grammar["states"][team]) for team in TEAMS})


TRAFFIC = _load("traffic")
UNSEEN = _load("unseen")
"""Tickets for evaluation: none of their sentences and states is in the traffic."""
