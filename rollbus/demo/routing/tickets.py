"""Tickets from a grammar: thousands of distinct ones for traffic, and others for the evaluation.

A ticket is a moment (what went wrong, which decides the team) with a thing, in a style. The evaluation has moments,
things and styles of its own, so a model that only remembers sentences gains nothing there. The same seed and number are
always the same ticket. The sentences are in `tickets.yaml`.
"""

import random
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources

import yaml

NO_ORDER = "no such order"
TEAMS = ("payment", "delivery", "return", "account")


@dataclass(frozen=True, slots=True)
class Ticket:
    """What a customer writes, and the team that it belongs to."""

    order: str
    text: str
    team: str
    moment: str
    """What went wrong: the sentence of the grammar that it came from, or the state of its order."""


@dataclass(frozen=True, slots=True)
class Grammar:
    """`[a|b]` is one of them, `{thing}` a thing; a style wraps the sentence `{text}`."""

    moments: Mapping[str, tuple[str, ...]]
    things: tuple[str, ...]
    styles: tuple[str, ...]
    typo_rate: float
    """Of tickets with one letter lost, doubled or swapped."""

    def ticket(self, seed: int, number: int) -> Ticket:
        """Return the ticket of a number; every team is as likely."""
        rng = random.Random(f"{seed}:{number}")
        order = f"{rng.randrange(10**5):05}{number:04}"
        team = rng.choice(TEAMS)
        moment = rng.choice(self.moments[team])
        sentence = choose(moment, rng).replace("{thing}", rng.choice(self.things))
        text = choose(rng.choice(self.styles), rng).replace("{text}", sentence).replace("{order}", order)
        if rng.random() < self.typo_rate:
            text = _misspell(text, rng)
        return Ticket(order, text, team, moment)

    def state(self, seed: int, order: str) -> str:
        """Return that the shop has no order: these tickets say themselves what is wrong."""
        return NO_ORDER


def choose(pattern: str, rng: random.Random) -> str:
    """Return the pattern with one of the alternatives of each `[a|b]`."""
    return re.sub(r"\[([^]]*)\]", lambda match: rng.choice(match[1].split("|")), pattern)


def _misspell(text: str, rng: random.Random) -> str:
    """Lose, double or swap one letter."""
    letters = [index for index in range(1, len(text) - 1) if text[index - 1 : index + 2].isalpha()]
    if not letters:
        return text
    at = rng.choice(letters)
    change = rng.choice((text[at + 1], text[at] * 2 + text[at + 1], text[at + 1] + text[at]))
    return text[:at] + change + text[at + 2 :]


def _load(name: str) -> Grammar:
    text = resources.files(__package__).joinpath("tickets.yaml").read_text(encoding="utf-8")
    grammar = yaml.safe_load(text)[name]
    moments = {team: tuple(grammar["moments"][team]) for team in TEAMS}
    return Grammar(moments, tuple(grammar["things"]), tuple(grammar["styles"]), grammar["typo_rate"])


TRAFFIC = _load("traffic")
UNSEEN = _load("unseen")
"""No moment, thing or style of the traffic."""
