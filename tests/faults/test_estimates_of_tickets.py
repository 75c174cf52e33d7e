"""Estimates of a real language model at the desk's tickets, held to what its versions truly earn: sums, not samples."""

from functools import cache

import pytest

from tests.estimates.coverage import ESTIMATORS, measure_coverage, measure_drift
from tests.estimates.tickets import AnsweredTickets, answer_tickets

pytestmark = [pytest.mark.faults, pytest.mark.timeout(1200)]  # on a busy machine SmolLM2 reads a ticket a second

TICKETS, RUNS, ANSWERS = 40, 1_500, 400
TICKET_STEPS = (4, 1, 4, 16)
"""Of the version that answered the tickets, and after it of those that are estimated."""
NEAREST = 0.93
"""Nominal is 95 %, which so many runs tell to 0.6 %: with 300 an interval that holds 94.95 % fell below."""


@cache
def near() -> dict[int, AnsweredTickets]:
    before, *after = TICKET_STEPS
    return answer_tickets(before, after, tickets=TICKETS)


@pytest.mark.parametrize("steps", TICKET_STEPS[1:])
def test_intervals_from_tickets_hold_a_later_versions_reward_and_divergence(steps: int) -> None:
    answered = near()[steps]
    coverage, refused = measure_coverage(answered.world(), runs=RUNS, episodes=ANSWERS)
    assert refused < 0.05
    for name in ESTIMATORS:
        assert coverage[name] >= NEAREST, name
        assert coverage[f"{name}, difference"] >= NEAREST, name
    held_drift, refused = measure_drift(answered.drift(), runs=RUNS, answers=ANSWERS)
    assert refused < 0.1
    assert held_drift >= NEAREST


def test_a_version_with_learned_unrecorded_answers_is_refused() -> None:
    (far,) = answer_tickets(TICKET_STEPS[0], [60], tickets=8, says="Sorry").values()
    _, refused = measure_coverage(far.world(), runs=20, episodes=ANSWERS)
    assert refused == 1
    _, refused = measure_drift(far.drift(), runs=20, answers=ANSWERS)
    assert refused == 1
