"""The desk's tickets, answered by a real language model: a bandit whose truth is a sum.

An answer is one token, and earns 1 if it is the team that a colleague named. So what a version truly earns is the mean,
over the tickets, of the probability that it gives to that team's token. How far it has moved is a sum over the whole
vocabulary.

The versions share SmolLM2's weights but for the last layer's feed-forward part and the norms at its ends, which learn
the teams. What comes into that part is computed once for each ticket, and so is each version's distribution: all runs
draw from these.
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from math import log
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from rollbus.demo.routing import prompt
from rollbus.demo.routing.customers import verdict_of
from rollbus.demo.routing.tickets import TRAFFIC
from rollbus.estimates.episode import Step, WeightedEpisode
from rollbus.trainer.art_server.base_models.packaged import fetch_model, models_cache
from rollbus.trainer.art_server.checkpoints.loading import ModelLoader
from rollbus.trainer.art_server.endpoint.tokenizer import load_tokenizer, render_chat
from rollbus.trainer.art_server.model.config import ModelConfig, read_config
from rollbus.trainer.art_server.model.model import head, trunk
from rollbus.trainer.art_server.model.precision import choose_precision
from tests.estimates.worlds import KnownDrift, KnownWorld

TICKETS = 100
AT_ONCE = 20
LEARNING_RATE = 1e-4
TICKETS_PER_STEP = 16
Rows = NDArray[np.float64]
"""By ticket and token: the probability of an answer."""


@dataclass(frozen=True, slots=True)
class Rated:
    """A ticket with the team that a colleague named at last."""

    text: str
    ids: Sequence[int]
    """Of its prompt."""
    token: int
    """The team's name."""


def rated_tickets(tokenizer: Any, count: int) -> list[Rated]:
    """Return the first tickets of the demo's traffic that have a verdict."""
    tickets, number = list[Rated](), 0
    while len(tickets) < count:
        ticket = TRAFFIC.ticket(0, number)
        if verdict := verdict_of(ticket, 0):
            ids = render_chat(tokenizer, prompt.messages(ticket.text), None)
            tickets.append(Rated(ticket.text, ids, int(tokenizer.encode(verdict.teams[-1])[0])))
        number += 1
    return tickets


class Desk:
    """SmolLM2 up to its last feed-forward part, at every ticket; a version is what follows."""

    def __init__(self, count: int = TICKETS) -> None:
        folder = fetch_model("smollm2", models_cache(), report=print)
        config = read_config(folder)
        self._model = _load_frozen(config, folder)
        self.tokenizer = load_tokenizer(folder, vocabulary=config.vocabulary)
        self.tickets = rated_tickets(self.tokenizer, count)
        self.teams = [ticket.token for ticket in self.tickets]
        self._inputs_N_D = self._read_tickets()
        last = self._model.layers[-1]
        self.first = nn.ModuleList([last.mlp_norm, last.mlp, self._model.norm]).float()

    def _read_tickets(self) -> Tensor:
        """Run all that the versions share, at the precision of the demo. Padding follows a ticket, which sees none."""
        layers, norm, last = self._model.layers, self._model.norm, self._model.layers[-1]
        ends_N = torch.tensor([len(ticket.ids) - 1 for ticket in self.tickets])
        ids_N_T = torch.zeros(len(self.tickets), int(ends_N.max()) + 1, dtype=torch.long)
        for row, ticket in zip(ids_N_T, self.tickets, strict=True):
            row[: len(ticket.ids)] = torch.tensor(ticket.ids)
        self._model.layers, self._model.norm = layers[:-1], nn.Identity()
        attended_rows = []
        with torch.no_grad():
            for at in range(0, len(ends_N), AT_ONCE):
                ends_B, hidden_B_T_D = ends_N[at : at + AT_ONCE], trunk(self._model, ids_N_T[at : at + AT_ONCE])
                attended_B_T_D = hidden_B_T_D + last.attn(last.sa_norm(hidden_B_T_D))
                attended_rows.append(attended_B_T_D[torch.arange(len(ends_B)), ends_B].float())
        self._model.layers, self._model.norm = layers, norm
        return torch.cat(attended_rows)  # [N, D]

    def answer(self, version: nn.ModuleList) -> Rows:
        """Return a version's distribution at each ticket."""
        with torch.no_grad():
            return torch.softmax(self._logits(version, self._inputs_N_D).double(), dim=-1).numpy()

    def teach(
        self, version: nn.ModuleList, answers: Sequence[int], steps: Sequence[int], chance: Random
    ) -> list[nn.ModuleList]:
        """Return versions that were trained so many steps to give these answers, one to each ticket."""
        student, students = copy.deepcopy(version).requires_grad_(True), list[nn.ModuleList]()
        optimizer, answers_N = torch.optim.AdamW(student.parameters(), LEARNING_RATE), torch.tensor(answers)
        for step in range(1, max(steps) + 1):
            some_B = torch.tensor(chance.choices(range(len(self.tickets)), k=TICKETS_PER_STEP))
            optimizer.zero_grad()
            logits_B_V = self._logits(student, self._inputs_N_D[some_B])
            functional.cross_entropy(logits_B_V, answers_N[some_B]).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            students += [copy.deepcopy(student)] * (step in steps)
        return students

    def _logits(self, version: nn.ModuleList, inputs_B_D: Tensor) -> Tensor:
        own_norm, feed_forward, norm = version
        return head(self._model, norm(inputs_B_D + feed_forward(own_norm(inputs_B_D))))  # [B, V]


def _load_frozen(config: ModelConfig, folder: Path) -> Any:
    return ModelLoader(config, precision=choose_precision("auto", "cpu")).load(folder).eval().requires_grad_(False)


@dataclass(frozen=True, slots=True)
class Answered:
    """Tickets that one version has answered, and the distributions of another one and of the base model."""

    tickets: Sequence[Rated]
    recorded_probabilities: Rows
    other: Rows
    base: Rows
    sums: Rows
    """Of `recorded_probabilities`, up to each token."""

    def world(self) -> KnownWorld:
        """Return what both versions truly earn."""
        rows, teams = np.arange(len(self.tickets)), [ticket.token for ticket in self.tickets]
        truth, earned = (float(of[rows, teams].mean()) for of in (self.other, self.recorded_probabilities))
        return KnownWorld(self._draw, truth, earned)

    def drift(self) -> KnownDrift:
        """Return how far the other version is from the base."""
        apart = np.log(self.other) - np.log(self.base)

        def draw(chance: Random, answers: int) -> list[tuple[float, float, int]]:
            drawn = (self._choose(chance) for _ in range(answers))
            return [(log(self.other[at] / self.recorded_probabilities[at]), float(apart[at]), 1) for at in drawn]

        return KnownDrift(draw, float((self.other * apart).sum(axis=1).mean()))

    def _draw(self, chance: Random, episodes: int) -> list[WeightedEpisode]:
        drawn = []
        for name in range(episodes):
            number, token = at = self._choose(chance)
            ticket, probability = self.tickets[number], float(self.other[at])
            step = Step(log(probability / self.recorded_probabilities[at]), float(token == ticket.token))
            drawn.append(WeightedEpisode(f"e{name}", prompt.TASK, ticket.text, (step,), str(token), probability))
        return drawn

    def _choose(self, chance: Random) -> tuple[int, int]:
        """Draw a ticket, and an answer to it."""
        number = chance.randrange(len(self.tickets))
        token = int(np.searchsorted(self.sums[number], chance.random()))
        return number, min(token, self.sums.shape[1] - 1)


def answered_tickets(
    before: int, steps: Sequence[int], *, tickets: int = TICKETS, says: str | None = None
) -> dict[int, Answered]:
    """Return tickets that SmolLM2 answered after so many steps, beside versions that many steps later, by their steps.

    `says` is what the later versions learn to answer to everything, instead of the teams.
    """
    desk, chance = Desk(tickets), Random(4)
    (first,) = desk.teach(desk.first, desk.teams, [before], chance)
    answers = desk.teams if says is None else [int(desk.tokenizer.encode(says)[0])] * tickets
    later = map(desk.answer, desk.teach(first, answers, steps, chance))
    recorded_probabilities, base = desk.answer(first), desk.answer(desk.first)
    sums = np.cumsum(recorded_probabilities, axis=1)
    return {
        count: Answered(desk.tickets, recorded_probabilities, other, base, sums)
        for count, other in zip(steps, later, strict=True)
    }
