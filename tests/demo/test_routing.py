"""Tickets, the desk and the customers of the demo: traffic is what production brings, and the evaluation is unseen."""

import asyncio
import json
import logging
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from rollbus.demo.job import TRAFFIC_ENDED
from rollbus.demo.pace import write_rate
from rollbus.demo.routing import customers as module
from rollbus.demo.routing.customers import (
    FLUSH_S,
    SILENT_SHARE,
    STOP_S,
    TAKEN_BACK_SHARE,
    WRONG_SHARE,
    Customers,
    CustomerSettings,
    verdict_of,
)
from rollbus.demo.routing.desk import DeskSettings, Settlements, start_recorder
from rollbus.demo.routing.job import LookUp, RoutingJob
from rollbus.demo.routing.prompt import EXAMPLES, messages, read_team
from rollbus.demo.routing.references import bag_of_words
from rollbus.demo.routing.tickets import TEAMS, TRAFFIC, UNSEEN
from rollbus.local.process.supervisor import STOP_GRACE_S
from rollbus.producers import MemorySink
from rollbus.producers.start import init


def test_traffic_has_thousands_of_distinct_tickets_evenly_for_every_team() -> None:
    tickets = [TRAFFIC.ticket(0, number) for number in range(2000)]
    assert len({ticket.text for ticket in tickets}) > 1950
    assert len({ticket.order for ticket in tickets}) == 2000
    assert min(Counter(ticket.team for ticket in tickets).values()) > 440


def test_the_evaluation_shares_no_sentence_thing_or_style_with_traffic() -> None:
    for part in ("things", "styles"):
        assert not set(getattr(TRAFFIC, part)) & set(getattr(UNSEEN, part))
    for team in TEAMS:
        assert not set(TRAFFIC.moments[team]) & set(UNSEEN.moments[team])
    for text in {UNSEEN.ticket(0, number).text for number in range(300)}:
        assert re.search(r"[\[\]{}|]", text) is None


def test_a_ticket_and_its_verdict_depend_on_seed_and_number_alone() -> None:
    assert TRAFFIC.ticket(3, 7) == TRAFFIC.ticket(3, 7) != TRAFFIC.ticket(4, 7)
    assert verdict_of(TRAFFIC.ticket(3, 7), 3) == verdict_of(TRAFFIC.ticket(3, 7), 3)


def test_verdicts_are_wrong_absent_or_retracted_at_the_stated_rates() -> None:
    tickets = [TRAFFIC.ticket(1, number) for number in range(4000)]
    verdicts = [(ticket, verdict) for ticket in tickets if (verdict := verdict_of(ticket, 1))]
    assert 1 - len(verdicts) / 4000 == pytest.approx(SILENT_SHARE, abs=0.02)
    wrong = sum(verdict.teams[-1] != ticket.team for ticket, verdict in verdicts) / len(verdicts)
    assert wrong == pytest.approx(WRONG_SHARE, abs=0.02)
    twice = sum(len(verdict.teams) == 2 for _, verdict in verdicts) / len(verdicts)
    assert twice == pytest.approx(TAKEN_BACK_SHARE, abs=0.015)


def test_every_example_comes_last_for_some_tickets() -> None:
    last = Counter(messages(TRAFFIC.ticket(0, number).text)[-2]["content"] for number in range(200))
    assert set(last) == {team for _, team in EXAMPLES} == set(TEAMS)


@pytest.mark.parametrize(("reply", "team"), [("return", "return"), ("Return", None), ("return it", None), (None, None)])
def test_only_a_teams_name_is_a_team(reply: str | None, team: str | None) -> None:
    assert read_team(reply) == team


@pytest.mark.parametrize("job", [RoutingJob(), LookUp()], ids=["routing", "orders"])
def test_the_desk_records_the_log_prob_mode_of_the_server(job: RoutingJob) -> None:
    recorder = start_recorder(DeskSettings(1, "http://127.0.0.1:1/v1", "127.0.0.1:1", "demo.", "agent", job.run, 0))
    recorder.close(0.0)
    assert recorder.settings.logprob_mode == job.settings()["art_server"]["logprobs_mode"]


async def test_a_waiting_caller_gets_the_last_verdict_on_a_ticket() -> None:
    settlements = Settlements()
    waiting = asyncio.ensure_future(settlements.wait("17", 5.0))
    await asyncio.sleep(0)
    settlements.settle("17", "account")
    assert await waiting == "account"
    settlements.settle("17", "payment")
    assert await settlements.wait("17", 5.0) == "payment"
    assert await settlements.wait("18", 0.01) is None


@pytest.fixture
def at_once(tmp_path: Path) -> str:
    """A rate at which every ticket comes at once."""
    write_rate(tmp_path / "rate", 1e4)
    return str(tmp_path / "rate")


def customers(answer: Callable[[httpx.Request], Any], tickets: int, rate_file: str) -> tuple[Customers, MemorySink]:
    """Customers of a desk that answers so, and what they report."""
    sink = MemorySink()
    desk = httpx.AsyncClient(base_url="http://desk", transport=httpx.MockTransport(answer))
    settings = CustomerSettings("http://desk", "", "demo.", seed=0, tickets=tickets, rate_file=rate_file)
    return Customers(settings, init(sink=sink, producer="customers"), desk), sink


async def test_each_ticket_is_settled_by_the_last_verdict_on_its_order(
    monkeypatch: pytest.MonkeyPatch,
    at_once: str,
) -> None:
    monkeypatch.setattr(module, "MAX_DELAY_S", 0.01)
    settled = {}

    def answer(request: httpx.Request) -> httpx.Response:
        if request.method == "PUT":
            settled[request.url.path.split("/")[2]] = json.loads(request.content)["team"]
        return httpx.Response(200, json={"team": "return"})

    some, sink = customers(answer, 60, at_once)
    await some.run()
    verdicts = {ticket.order: verdict_of(ticket, 0) for ticket in (TRAFFIC.ticket(0, number) for number in range(60))}
    assert settled == {order: verdict.teams[-1] for order, verdict in verdicts.items() if verdict}
    assert some._recorder.close(120)
    assert len(sink.records("aliases")) == sum(len(verdict.teams) for verdict in verdicts.values() if verdict)


async def test_stopped_customers_end_soon_without_an_answer(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, at_once: str
) -> None:
    monkeypatch.setattr(module, "STOP_S", 0.05)

    async def hang(request: httpx.Request) -> httpx.Response:
        await asyncio.Event().wait()
        raise AssertionError

    some, _ = customers(hang, 5, at_once)
    asyncio.get_running_loop().call_later(0.02, some.stop)
    with caplog.at_level(logging.INFO):
        await asyncio.wait_for(some.run(), 120)
    assert f"{TRAFFIC_ENDED}: written=0 failed=0 of 5" in caplog.text
    assert STOP_S + FLUSH_S < STOP_GRACE_S


async def test_an_error_that_is_not_the_desks_ends_the_customers(at_once: str) -> None:
    def broken(request: httpx.Request) -> httpx.Response:
        raise KeyError("no such ticket")

    with pytest.raises(ExceptionGroup):
        await customers(broken, 1, at_once)[0].run()


def test_words_alone_solve_the_traffic_but_not_unseen_tickets() -> None:
    traffic = [TRAFFIC.ticket(50, number) for number in range(200)]
    unseen = [UNSEEN.ticket(0, number) for number in range(320)]
    assert bag_of_words(0, 600, traffic) > 0.9
    assert 0.3 < bag_of_words(0, 600, unseen) < 0.75
