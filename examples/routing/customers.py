"""The desk's users: customers write tickets in bursts, and colleagues report later what became of each, by its order.

A verdict is feedback from this process, not from the desk's. A tenth of the verdicts name a wrong team, one in twenty
is corrected later, and a tenth of the tickets get no verdict. With --words the customers themselves say what they think
of the answer, in place of verdicts; some customers say the opposite of what they think, something vague, or
nothing. Prints how many tickets the desk sent to the right team; Ctrl-C ends it.
"""

import argparse
import asyncio
import os
import random
from contextlib import suppress

import httpx
from shop import STATES, TEAMS, state_of

import rollbus

KAFKA = os.environ.get("KAFKA_BOOTSTRAP_SERVERS", "127.0.0.1:9092")
DESK = os.environ.get("DESK_URL", "http://127.0.0.1:8080")
MAX_BURST = 8
"""Tickets that arrive together, at most."""
NO_VERDICT_SHARE, WRONG_SHARE, CORRECTED_SHARE = 0.1, 0.1, 0.05
"""Share of the tickets without a verdict; shares of the verdicts that are wrong, and that are wrong until corrected."""
DELAY_S, MAX_DELAY_S = 2.0, 4.0
"""Mean and longest wait for a word on a ticket; seconds here are days in a shop."""
PRINT_EVERY_TICKETS = 100
TICKETS_PER_S = {"routing": 1.8, "orders": 0.2}
"""By task: how many two cores can learn from as they come."""
SENTENCES = {
    "payment": (
        "I was charged twice for the {thing}",
        "the total on the bill for the {thing} is too high",
        "please send me an invoice for the {thing} for my company",
        "the voucher for the {thing} was not taken off",
        "my card is declined when I pay for the {thing}",
        "can I pay for the {thing} in instalments",
    ),
    "delivery": (
        "where is my {thing}, it should be here since Monday",
        "the tracking page for the {thing} has not moved for a week",
        "the driver left the {thing} in the rain",
        "please ship the {thing} to my office",
        "the {thing} is stuck at customs",
        "when will the {thing} arrive",
    ),
    "return": (
        "the {thing} stopped working after two days, I want a new one",
        "the {thing} is too small, can I exchange it",
        "how do I send back the {thing}",
        "you sent me another {thing}, please take it back",
        "is there a warranty on the {thing}, it makes a noise",
        "I changed my mind about the {thing}",
    ),
    "account": (
        "I lost my password and cannot see my order of the {thing}",
        "I cannot log in to check the {thing}",
        "please change my e-mail address, I ordered the {thing} with the old one",
        "somebody got into my account and bought the {thing}",
        "how do I delete my account, I only wanted the {thing}",
        "the code to confirm my login never comes, and I want the {thing}",
    ),
}
PRODUCTS = ("kettle", "desk lamp", "winter coat", "office chair", "backpack", "toaster", "keyboard", "tent", "mirror")
STYLES = ("{text}", "Hi, {text}.", "order {order}: {text}", "{text}!!", "Dear team, {text}. Regards, Mei", "{text}?")
ABOUT_AN_ORDER = ("please check order {order}", "who can help me with {order}", "{order} again, still not solved")


def write_ticket(task: str, order: str, rng: random.Random) -> tuple[str, str]:
    """Return a ticket's text, and the team that it belongs to."""
    if task == "orders":
        return rng.choice(ABOUT_AN_ORDER).format(order=order), STATES[state_of(order)]
    team = rng.choice(TEAMS)
    text = rng.choice(SENTENCES[team]).format(thing=rng.choice(PRODUCTS))
    return rng.choice(STYLES).format(text=text, order=order), team


PLEASED = ("thanks", "Perfect, thank you!", "great, exactly that", "thx", "cheers")
CORRECTIONS = ("no, it's about the {team}", "that's wrong, I meant {team}", "Nope. {team}.", "not what I asked")
VAGUE = ("ok", "hm", "and when will I hear from you?")
CUSTOMER_SHARES = {"honest": 0.7, "opposite": 0.1, "vague": 0.1, "silent": 0.1}
"""Shares of the customers who say what they think, the opposite, something vague, and nothing."""


def choose_words(is_right: bool, team: str, rng: random.Random) -> str | None:
    """Return what a customer says after the answer; None for nothing."""
    (kind,) = rng.choices(tuple(CUSTOMER_SHARES), weights=tuple(CUSTOMER_SHARES.values()))
    if kind == "silent":
        return None
    if kind == "vague":
        return rng.choice(VAGUE)
    sounds_pleased = is_right if kind == "honest" else not is_right
    return rng.choice(PLEASED if sounds_pleased else CORRECTIONS).format(team=team)


class Customers:
    """Write the tickets, and later say or report what became of them."""

    def __init__(self, task: str, recorder: rollbus.Recorder, desk: httpx.AsyncClient, *, in_words: bool) -> None:
        self.task, self.recorder, self.desk, self.in_words = task, recorder, desk, in_words
        self.answered = self.right_since_print = 0

    async def write(self, order: str, rng: random.Random) -> None:
        """Write a ticket; later report where it belongs."""
        text, team = write_ticket(self.task, order, rng)
        try:
            body = {"order": order, "text": text, "task": self.task}
            answer = (await self.desk.post("/tickets", json=body)).raise_for_status().json()
            self.count(answer == team)
            if self.in_words:
                await self.speak(order, choose_words(answer == team, team, rng), rng)
            elif rng.random() >= NO_VERDICT_SHARE:
                await self.report(order, answer, team, rng)
        except httpx.HTTPError as error:
            print(f"ticket {order} failed: {error!r}", flush=True)

    async def speak(self, order: str, words: str | None, rng: random.Random) -> None:
        """Say something to the desk, or nothing."""
        await asyncio.sleep(min(rng.expovariate(1 / DELAY_S), MAX_DELAY_S))
        if words is not None:
            (await self.desk.post(f"/tickets/{order}/messages", json={"text": words})).raise_for_status()

    async def report(self, order: str, answer: str | None, team: str, rng: random.Random) -> None:
        """Report once or twice which team it is; the last verdict closes the ticket."""
        wrong_team = rng.choice([other for other in TEAMS if other != team])
        shares = (1 - WRONG_SHARE - CORRECTED_SHARE, WRONG_SHARE, CORRECTED_SHARE)
        (verdicts,) = rng.choices([(team,), (wrong_team,), (wrong_team, team)], weights=shares)
        earlier_id: str | None = None
        for verdict in verdicts:
            await asyncio.sleep(min(rng.expovariate(1 / DELAY_S), MAX_DELAY_S))
            earlier_id = self.recorder.feedback(
                alias=order, reward=float(answer == verdict), key=f"{order}:{verdict}", supersedes=earlier_id
            )
        (await self.desk.put(f"/tickets/{order}/team", json={"team": verdicts[-1]})).raise_for_status()

    def count(self, is_right: bool) -> None:
        """Print now and then how many of the newest answers were right."""
        self.answered += 1
        self.right_since_print += is_right
        if self.answered % PRINT_EVERY_TICKETS == 0:
            share = f"{self.right_since_print} of the last {PRINT_EVERY_TICKETS}"
            print(f"{self.answered} tickets, {share} to the right team", flush=True)
            self.right_since_print = 0


async def bring_traffic(task: str, tickets: int, per_second: float, *, in_words: bool) -> None:
    """Write so many tickets, in bursts."""
    recorder = rollbus.init(bootstrap_servers=KAFKA, producer="customers")
    orders = random.sample(range(100_000, 1_000_000), tickets)
    try:
        async with httpx.AsyncClient(base_url=DESK, timeout=60) as desk, asyncio.TaskGroup() as tickets_in_work:
            customers = Customers(task, recorder, desk, in_words=in_words)
            while orders:
                burst = [orders.pop() for _ in range(min(random.randint(1, MAX_BURST), len(orders)))]
                for order in burst:
                    tickets_in_work.create_task(customers.write(str(order), random.Random(order)))
                await asyncio.sleep(len(burst) / per_second)
    finally:
        await asyncio.to_thread(recorder.close)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", choices=("routing", "orders"), default="routing")
    parser.add_argument("--tickets", type=int, default=1600)
    parser.add_argument("--rate", type=float, help="tickets per second; by default what two cores keep up with")
    parser.add_argument("--words", action="store_true", help="customers answer in words, and nobody reports a verdict")
    options = parser.parse_args()
    with suppress(KeyboardInterrupt):
        per_second = options.rate or TICKETS_PER_S[options.task]
        asyncio.run(bring_traffic(options.task, options.tickets, per_second, in_words=options.words))
