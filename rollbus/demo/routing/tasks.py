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
    """A source of tickets, and of the states of the orders that they name."""

    def ticket(self, seed: int, number: int) -> Ticket:
        """Return the ticket of a number; the same seed and number give the same ticket."""
        ...

    def state(self, seed: int, order: str) -> str:
        """Return what the shop's system says of an order."""
        ...


@dataclass(frozen=True, slots=True)
class Task:
    """One kind of tickets, and how the desk's agent answers them."""

    name: str
    traffic: Tickets
    unseen: Tickets
    """Tickets of the evaluation, in sentences that traffic never has."""
    messages: Callable[[str], list[dict[str, Any]]]
    """A ticket to the opening of the chat."""
    ask: Callable[[AsyncOpenAI, str, list[dict[str, Any]], float, LookUp], Awaitable[str | None]]
    """Client, model, chat, temperature and the shop's system → the team that the model names."""
    temperature: float
    """Of the answers in traffic."""
    max_sampled_tokens: int
    """Of one answer, over all its turns."""

    @property
    def logprobs_mode(self) -> LogprobsMode:
        """What the log-probs are of, for the server and the recorder: at another temperature than 1, `processed`."""
        return "raw" if self.temperature == 1 else "processed"


ROUTING = Task(
    prompt.TASK,
    tickets.TRAFFIC,
    tickets.UNSEEN,
    prompt.messages,
    prompt.ask,
    temperature=1.0,
    max_sampled_tokens=prompt.MAX_ANSWER_TOKENS,
)
ORDERS = Task(
    orders.TASK,
    orders.TRAFFIC,
    orders.UNSEEN,
    orders.messages,
    orders.ask,
    temperature=0.7,  # at 1, one call in seven is whole, and hardly a group has signal; at 0.7, six in ten
    max_sampled_tokens=orders.CALL_TOKENS + orders.ANSWER_TOKENS,
)
TASKS = {task.name: task for task in (ROUTING, ORDERS)}


def look_up_in(tickets: Tickets, seed: int) -> LookUp:
    """Return the shop's system for these tickets."""

    async def look_up(order: str) -> str:
        return tickets.state(seed, order)

    return look_up
