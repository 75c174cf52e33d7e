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
TICKETS_PER_PASS = 20
LEARNING_RATE = 1e-4
TICKETS_PER_STEP = 16
Rows = NDArray[np.float64]
"""By ticket and token: the probability of an answer."""


@dataclass(frozen=True, slots=True)
class RatedTicket:
    """A ticket with the team that a colleague named last."""

    text: str
    prompt_ids: Sequence[int]
    team_token: int
    """The one token of the team's name."""


def rate_tickets(tokenizer: Any, count: int) -> list[RatedTicket]:
    """Return the first tickets of the demo's traffic that have a verdict."""
    tickets, number = list[RatedTicket](), 0
    while len(tickets) < count:
        ticket = TRAFFIC.ticket(0, number)
        if verdict := verdict_of(ticket, 0):
            prompt_ids = render_chat(tokenizer, prompt.messages(ticket.text), None)
            tickets.append(RatedTicket(ticket.text, prompt_ids, int(tokenizer.encode(verdict.teams[-1])[0])))
        number += 1
    return tickets


class Desk:
    """SmolLM2 up to its last feed-forward part, at every ticket; a version is what follows."""

    def __init__(self, count: int = TICKETS) -> None:
        folder = fetch_model("smollm2", models_cache(), report=print)
        config = read_config(folder)
        self._model = _load_frozen(config, folder)
        self.tokenizer = load_tokenizer(folder, vocabulary=config.vocabulary)
        self.tickets = rate_tickets(self.tokenizer, count)
        self.teams = [ticket.team_token for ticket in self.tickets]
        self._inputs_N_D = self._read_tickets()
        last = self._model.layers[-1]
        self.first = nn.ModuleList([last.mlp_norm, last.mlp, self._model.norm]).float()

    def _read_tickets(self) -> Tensor:
        """Run all that the versions share, at the precision of the demo. Padding follows a ticket, which sees none."""
        layers, norm, last = self._model.layers, self._model.norm, self._model.layers[-1]
        ends_N = torch.tensor([len(ticket.prompt_ids) - 1 for ticket in self.tickets])
        ids_N_T = torch.zeros(len(self.tickets), int(ends_N.max()) + 1, dtype=torch.long)
        for row, ticket in zip(ids_N_T, self.tickets, strict=True):
            row[: len(ticket.prompt_ids)] = torch.tensor(ticket.prompt_ids)
        self._model.layers, self._model.norm = layers[:-1], nn.Identity()
        attended_rows = []
        with torch.no_grad():
            for at in range(0, len(ends_N), TICKETS_PER_PASS):
                ends_B, hidden_B_T_D = (
                    ends_N[at : at + TICKETS_PER_PASS],
                    trunk(self._model, ids_N_T[at : at + TICKETS_PER_PASS]),
                )
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
            chosen_B = torch.tensor(chance.choices(range(len(self.tickets)), k=TICKETS_PER_STEP))
            optimizer.zero_grad()
            logits_B_V = self._logits(student, self._inputs_N_D[chosen_B])
            functional.cross_entropy(logits_B_V, answers_N[chosen_B]).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            students += [copy.deepcopy(student)] * (step in steps)
        return students

    def _logits(self, version: nn.ModuleList, inputs_B_D: Tensor) -> Tensor:
        own_norm, feed_forward, norm = version
        return head(self._model, norm(inputs_B_D + feed_forward(own_norm(inputs_B_D))))  # [B, V]


def _load_frozen(config: ModelConfig, folder: Path) -> Any:
    return ModelLoader(config, precision=choose_precision("auto", "cpu")).load(folder).eval().requires_grad_(False)


@dataclass(frozen=True, slots=True)
class AnsweredTickets:
    """Tickets that one version has answered, with the distributions of that one, another one and the base model."""

    tickets: Sequence[RatedTicket]
    recorded_probabilities: Rows
    other_probabilities: Rows
    base_probabilities: Rows
    cumulative_probabilities: Rows
    """Sums of `recorded_probabilities`, up to each token."""

    def world(self) -> KnownWorld:
        """Return what both versions truly earn."""
        rows, teams = np.arange(len(self.tickets)), [ticket.team_token for ticket in self.tickets]
        truth = float(self.other_probabilities[rows, teams].mean())
        earned = float(self.recorded_probabilities[rows, teams].mean())
        return KnownWorld(self._draw, truth, earned)

    def drift(self) -> KnownDrift:
        """Return how far the other version is from the base."""
        log_ratios = np.log(self.other_probabilities) - np.log(self.base_probabilities)
        log_weights = np.log(self.other_probabilities) - np.log(self.recorded_probabilities)

        def draw(chance: Random, answers: int) -> list[tuple[float, float, int]]:
            places = (self._choose(chance) for _ in range(answers))
            return [(float(log_weights[place]), float(log_ratios[place]), 1) for place in places]

        return KnownDrift(draw, float((self.other_probabilities * log_ratios).sum(axis=1).mean()))

    def _draw(self, chance: Random, episodes: int) -> list[WeightedEpisode]:
        drawn_episodes = []
        for number in range(episodes):
            row, token = place = self._choose(chance)
            ticket, probability = self.tickets[row], float(self.other_probabilities[place])
            step = Step(log(probability / self.recorded_probabilities[place]), float(token == ticket.team_token))
            episode = WeightedEpisode(f"e{number}", prompt.TASK, ticket.text, (step,), str(token), probability)
            drawn_episodes.append(episode)
        return drawn_episodes

    def _choose(self, chance: Random) -> tuple[int, int]:
        """Draw a ticket, and an answer to it: a row and a token."""
        row = chance.randrange(len(self.tickets))
        token = int(np.searchsorted(self.cumulative_probabilities[row], chance.random()))
        return row, min(token, self.cumulative_probabilities.shape[1] - 1)


def answer_tickets(
    before: int, steps: Sequence[int], *, tickets: int = TICKETS, says: str | None = None
) -> dict[int, AnsweredTickets]:
    """Return tickets that SmolLM2 answered after `before` steps, each time with a later version; by its further steps.

    `says` is what the later versions learn to answer to everything, instead of the teams.
    """
    desk, chance = Desk(tickets), Random(4)
    (first,) = desk.teach(desk.first, desk.teams, [before], chance)
    answers = desk.teams if says is None else [int(desk.tokenizer.encode(says)[0])] * tickets
    later = map(desk.answer, desk.teach(first, answers, steps, chance))
    recorded_probabilities, base_probabilities = desk.answer(first), desk.answer(desk.first)
    cumulative_probabilities = np.cumsum(recorded_probabilities, axis=1)
    return {
        count: AnsweredTickets(
            desk.tickets, recorded_probabilities, other_probabilities, base_probabilities, cumulative_probabilities
        )
        for count, other_probabilities in zip(steps, later, strict=True)
    }
