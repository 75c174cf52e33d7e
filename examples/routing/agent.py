"""The agent: a ticket in, a team's name out. Where the ticket only names an order, it looks that up by a tool first."""

import json
from typing import Any
from zlib import crc32

from openai import AsyncOpenAI
from shop import TEAMS, state_of

MODEL = "agent"
TEMPERATURE = {"routing": 1.0, "orders": 0.7}
"""At 1, SmolLM2 calls the tool rightly once in eight times; groups that never do teach nothing."""
CALL_TOKENS, TEAM_TOKENS = 40, 1
"""Most that an answer samples: a call takes about 30, a team's name is one."""
ONE_WORD = f"with one word: {', '.join(TEAMS[:-1])} or {TEAMS[-1]}."
SYSTEM = {
    "routing": f"You sort support tickets. Answer {ONE_WORD}",
    "orders": f"Look the order up. Then answer {ONE_WORD}",
}
EXAMPLES: dict[str, list[tuple[str, ...]]] = {
    "routing": [
        ("the invoice for my sofa is wrong", "payment"),
        ("my parcel has not come", "delivery"),
        ("the shoes do not fit, I send them back", "return"),
        ("I forgot my password", "account"),
    ],
    "orders": [
        ("I need help with order 904417", "904417", "invoice is wrong", "payment"),
        ("what about 215083", "215083", "parcel has not come", "delivery"),
        ("order 680352, please", "680352", "shoes do not fit", "return"),
        ("it is about 137946", "137946", "password lost", "account"),
    ],
}
"""A ticket, the order that is looked up and its state, the team. A model that is never right learns nothing."""
LOOK_UP = {
    "type": "function",
    "function": {
        "name": "look_up",
        "description": "Return the state of an order.",
        "parameters": {"type": "object", "properties": {"order": {"type": "string"}}, "required": ["order"]},
    },
}
Messages = list[dict[str, Any]]


def begin_chat(task: str, text: str) -> Messages:
    """Return the messages before the first answer.

    The ticket decides which example comes last: a small model repeats the last answer.
    """
    examples = EXAMPLES[task]
    first = crc32(text.encode()) % len(examples)
    chat: Messages = [{"role": "system", "content": SYSTEM[task]}]
    for question, *looked_up, team in examples[first:] + examples[:first]:
        chat.append({"role": "user", "content": question})
        if looked_up:
            order, state = looked_up
            chat += look_up_turn(f"call_{order}", json.dumps({"order": order}), state)
        chat.append({"role": "assistant", "content": team})
    return [*chat, {"role": "user", "content": text}]


def look_up_turn(call_id: str, arguments: str, state: str) -> Messages:
    """Return a call of the tool and what it answered as messages."""
    call = {"id": call_id, "type": "function", "function": {"name": "look_up", "arguments": arguments}}
    return [
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": call_id, "content": state},
    ]


async def ask(client: AsyncOpenAI, model: str, task: str, chat: Messages) -> str | None:
    """Return the team that the model names; None for any other answer."""
    options: dict[str, Any] = {"model": model, "temperature": TEMPERATURE[task]}
    if task == "orders":
        options["tools"] = [LOOK_UP]
        completion = await client.chat.completions.create(messages=chat, max_completion_tokens=CALL_TOKENS, **options)
        if not (calls := completion.choices[0].message.tool_calls):
            return None
        arguments = calls[0].function.arguments
        chat = [*chat, *look_up_turn(calls[0].id, arguments, state_of(read_order(arguments)))]
    completion = await client.chat.completions.create(messages=chat, max_completion_tokens=TEAM_TOKENS, **options)
    team = completion.choices[0].message.content
    return team if team in TEAMS else None


def read_order(arguments: str) -> str:
    """Return the order that a call names; empty for arguments of another shape."""
    try:
        return str(json.loads(arguments)["order"])
    except (ValueError, KeyError, TypeError):
        return ""
