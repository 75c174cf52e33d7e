"""The two tasks of the desk: tickets that say what is wrong, and tickets whose order must be looked up first."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Protocol

from openai import AsyncOpenAI

from rollbus.demo.routing import orders, prompt, tickets
from rollbus.demo.routing.prompt import LookUp
from rollbus.demo.routing.tickets import Ticket
from rollbus.trainer.backends.model_settings import LogprobsMode


class Tickets(Protocol):
    """A grammar."""

    def ticket(self, seed: int, number: int) -> Ticket: ...

    def state(self, seed: int, order: str) -> str:
        """Return what the shop's system says of an order."""
        ...


@dataclass(frozen=True, slots=True)
class Task:
    """What the desk is asked, and how its agent answers."""

    name: str
    traffic: Tickets
    unseen: Tickets
    """For the evaluation: in sentences that traffic never has."""
    messages: Callable[[str], list[dict[str, Any]]]
    """A ticket to the opening of the chat."""
    ask: Callable[[AsyncOpenAI, str, list[dict[str, Any]], float, LookUp], Awaitable[str | None]]
    """Client, model, chat, temperature and the shop's system → the team that the model names."""
    temperature: float
    """At which traffic is answered."""
    sampled_tokens: int
    """Most that one answer samples, over all its turns."""

    @property
    def logprobs_mode(self) -> LogprobsMode:
        """Of the server, and of who records: at another temperature than 1, of the distribution that was sampled."""
        return "raw" if self.temperature == 1 else "processed"


ROUTING = Task(
    prompt.TASK,
    tickets.TRAFFIC,
    tickets.UNSEEN,
    prompt.messages,
    prompt.ask,
    temperature=1.0,
    sampled_tokens=prompt.MAX_ANSWER_TOKENS,
)
ORDERS = Task(
    orders.TASK,
    orders.TRAFFIC,
    orders.UNSEEN,
    orders.messages,
    orders.ask,
    temperature=0.7,  # at 1, one call in seven is whole, and hardly a group has signal; at 0.7, six in ten
    sampled_tokens=orders.CALL_TOKENS + orders.ANSWER_TOKENS,
)
TASKS = {task.name: task for task in (ROUTING, ORDERS)}


def look_up_in(tickets: Tickets, seed: int) -> LookUp:
    """Return the shop's system for these tickets."""

    async def look_up(order: str) -> str:
        return tickets.state(seed, order)

    return look_up
