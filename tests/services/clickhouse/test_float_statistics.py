"""Statistics of floats on ClickHouse's real engine: none where all values are equal, and the right ones of huge values.

The engine's plain forms subtract two large sums: fourteen equal values have a deviation, and 1e9 and 1e9 + 1 have none.
"""

import math
from collections.abc import Iterator
from typing import Any

import pytest

from rollbus.consumers.clickhouse.store.client import ClickHouse
from rollbus.consumers.clickhouse.store.settings import ClickHouseSettings
from rollbus.ui.page_questions import Asking
from tests.builders import make_score, make_step
from tests.consumers.story import Record
from tests.services.clickhouse.test_queries import answer, new_database, write

pytestmark = pytest.mark.services

EQUAL, HUGE = 1, 2
"""Versions of the policy."""
EQUAL_REWARDS = [0.1] * 14
HUGE_REWARDS = [1e9, 1e9 + 1]
HUGE_DEVIATION = math.sqrt(0.5)


def records() -> Iterator[Record]:
    rewards = [(EQUAL, reward) for reward in EQUAL_REWARDS] + [(HUGE, reward) for reward in HUGE_REWARDS]
    for number, (version, reward) in enumerate(rewards):
        score = make_score(f"t{number}", reward, version=version, components={"style": reward}, sampled_tokens=number)
        yield "scores", "k", score
    yield "training-steps", "agent", make_step(2, base_version=EQUAL, policy_version=HUGE)


@pytest.fixture(scope="module")
def settings(clickhouse: tuple[str, int]) -> ClickHouseSettings:
    settings = new_database(clickhouse)
    client = ClickHouse(settings)
    write(client, "rollbus.", list(records()))
    client.close()
    return settings


def test_guards_have_the_right_error(settings: ClickHouseSettings) -> None:
    errors = {
        (row["component"], row["policy_version"]): row["standard_error"]
        for row in answer(settings, "guards_by_policy_version")
    }
    for component in ("style", "reward"):
        assert errors[component, EQUAL] == 0
        assert errors[component, HUGE] == pytest.approx(HUGE_DEVIATION / math.sqrt(2))


@pytest.mark.parametrize("name", ["reward_by_policy_version", "thin_rewards"])
def test_rewards_have_the_right_interval(settings: ClickHouseSettings, name: str) -> None:
    page = {"thin_rewards"}
    rows: list[dict[str, Any]] = asked_by_page(settings, name) if name in page else answer(settings, name)
    equal, huge = sorted(rows, key=lambda row: int(row["policy_version"]))
    assert equal["reward_low"] == equal["reward_mean"] == equal["reward_high"] == pytest.approx(0.1)
    width = 2 * 1.96 * HUGE_DEVIATION / math.sqrt(2)
    assert huge["reward_high"] - huge["reward_low"] == pytest.approx(width, rel=1e-6)


def test_a_difference_has_the_right_interval(settings: ClickHouseSettings) -> None:
    compared = {"left_model": "agent", "right_model": "agent"}
    equal, *_ = asked_by_page(settings, "side_by_side", **compared, left_version="1", right_version="1")
    assert (equal["difference"], equal["margin"]) == (0, None)
    huge, *_ = asked_by_page(settings, "side_by_side", **compared, left_version="2", right_version="2")
    assert huge["left_part"] == huge["right_part"] == pytest.approx(HUGE_DEVIATION**2 / 2)


def test_a_step_s_change_has_the_right_interval(settings: ClickHouseSettings) -> None:
    change, *_ = answer(settings, "did_step_help", step=2)
    width = 2 * 1.96 * math.sqrt(HUGE_DEVIATION**2 / 2)
    assert change["change_high"] - change["change_low"] == pytest.approx(width, rel=1e-6)


def test_the_correlation_of_huge_rewards_is_right(settings: ClickHouseSettings) -> None:
    client = ClickHouse(settings)
    rewards = [1e9, 1e9 + 1, 1e9 + 2]
    scores = [make_score(f"h{number}", reward, sampled_tokens=number) for number, reward in enumerate(rewards)]
    write(client, "huge.", [("scores", "k", score) for score in scores])
    client.close()
    (row,) = answer(settings, "length_against_reward", namespace="huge.")
    assert row["correlation"] == pytest.approx(1)


def asked_by_page(settings: ClickHouseSettings, name: str, **values: str) -> list[dict[str, Any]]:
    columns, rows = Asking(settings, "rollbus.", {"main": "agent"}).ask(name, values)
    return [dict(zip(columns, row, strict=True)) for row in rows]
