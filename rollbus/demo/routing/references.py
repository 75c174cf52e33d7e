"""What simpler learners reach on the same evaluation, from the same verdicts."""

import re
from collections.abc import Sequence

import numpy as np

from rollbus.demo.routing.customers import verdict_of
from rollbus.demo.routing.tickets import TEAMS, TRAFFIC, Ticket

STEPS, RATE, DECAY = 400, 2.0, 1e-3
"""Of the regression: full-batch gradient descent, which has converged by then."""


def bag_of_words(seed: int, tickets: int, unseen: Sequence[Ticket]) -> float:
    """Return the share that logistic regression on words names rightly, fitted to the verdicts on so many tickets."""
    traffic = [TRAFFIC.ticket(seed, number) for number in range(tickets)]
    labelled_tickets = [
        (labelled_ticket, verdict) for labelled_ticket in traffic if (verdict := verdict_of(labelled_ticket, seed))
    ]
    places = {
        word: place
        for place, word in enumerate(
            sorted({word for labelled_ticket, _ in labelled_tickets for word in _words(labelled_ticket)})
        )
    }
    counts_N_W = _counts([labelled_ticket for labelled_ticket, _ in labelled_tickets], places)
    labels_N_K = np.eye(len(TEAMS))[[TEAMS.index(verdict.teams[-1]) for _, verdict in labelled_tickets]]
    weights_W_K = np.zeros((len(places) + 1, len(TEAMS)))
    for _ in range(STEPS):
        errors_N_K = _softmax(counts_N_W @ weights_W_K) - labels_N_K
        weights_W_K -= RATE * (counts_N_W.T @ errors_N_K / len(labelled_tickets) + DECAY * weights_W_K)
    named_teams = (_counts(unseen, places) @ weights_W_K).argmax(axis=1)
    return float(np.mean([TEAMS[place] == ticket.team for place, ticket in zip(named_teams, unseen, strict=True)]))


def _words(ticket: Ticket) -> list[str]:
    return re.findall(r"[a-z]+", ticket.text.lower())


def _counts(tickets: Sequence[Ticket], places: dict[str, int]) -> np.ndarray:
    counts_N_W = np.zeros((len(tickets), len(places) + 1))
    counts_N_W[:, -1] = 1
    for row, ticket in enumerate(tickets):
        for word in _words(ticket):
            if word in places:
                counts_N_W[row, places[word]] = 1
    return counts_N_W


def _softmax(scores_N_K: np.ndarray) -> np.ndarray:
    raised_N_K = np.exp(scores_N_K - scores_N_K.max(axis=1, keepdims=True))
    return np.asarray(raised_N_K / raised_N_K.sum(axis=1, keepdims=True))
