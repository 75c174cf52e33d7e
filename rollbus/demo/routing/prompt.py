"""A ticket → the messages that the model is asked, and its answer → a team."""

from collections.abc import Awaitable, Callable, Sequence
from hashlib import blake2b
from typing import Any, TypeVar

from openai import AsyncOpenAI

from rollbus.demo.routing.tickets import TEAMS

TASK = "routing"
MAX_ANSWER_TOKENS = 1
"""A team's name is one token; a longer answer is cut."""
SYSTEM = f"You sort support tickets. Answer with one word: {', '.join(TEAMS[:-1])} or {TEAMS[-1]}."
EXAMPLES = (
    ("the invoice for my sofa is wrong", "payment"),
    ("my parcel has not come", "delivery"),
    ("the shoes do not fit, I send them back", "return"),
    ("I forgot my password", "account"),
)
LookUp = Callable[[str], Awaitable[str]]
"""An order's number → what the shop's system says of it."""

ExampleT = TypeVar("ExampleT")


def messages(text: str) -> list[dict[str, Any]]:
    """Return the chat. The ticket decides which example comes last, because a small model repeats the last answer."""
    chat = [{"role": "system", "content": SYSTEM}]
    for question, team in example_order(EXAMPLES, text):
        chat += [{"role": "user", "content": question}, {"role": "assistant", "content": team}]
    return [*chat, {"role": "user", "content": text}]


def example_order(examples: Sequence[ExampleT], text: str) -> Sequence[ExampleT]:
    """Return the examples, turned by a hash of the ticket."""
    first = blake2b(text.encode(), digest_size=1).digest()[0] % len(examples)
    return (*examples[first:], *examples[:first])


async def ask(
    client: AsyncOpenAI, model: str, chat: list[dict[str, Any]], temperature: float, look_up: LookUp
) -> str | None:
    """Return the team that the model names; None for any other answer. Nothing is looked up."""
    answer = await client.chat.completions.create(
        model=model,
        messages=chat,  # type: ignore[arg-type]
        max_completion_tokens=MAX_ANSWER_TOKENS,
        temperature=temperature,
    )
    return read_team(answer.choices[0].message.content)


def read_team(answer: str | None) -> str | None:
    """Return the team that an answer names; None for any other text."""
    return answer if answer in TEAMS else None
