"""A webhook hears of every decision in order, however often it fails before."""

import asyncio
import math
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from http.server import HTTPServer
from typing import Any

import httpx
import pytest

from rollbus.consumers.loggers.follow_kafka import _offer
from rollbus.consumers.loggers.webhook import Webhook, describe
from rollbus.schemas.errors import ConfigurationError
from rollbus.schemas.records.delivery import PolicyDecision
from tests.web import QuietHandler, serve

DECISION = PolicyDecision(
    model="agent",
    run_id="main",
    number=7,
    action="quarantine",
    version=212,
    serving=208,
    reason="worse:reward",
    numbers={
        "reward.effect": -0.0612,
        "reward.low": -0.1,
        "reward.high": -0.02,
        "reward.canary_episodes": 312.0,
        "reward.serving_episodes": 9800.0,
    },
    decided_at_ms=1,
)


ENDLESS = 1
"""An answer that has taken the body, and whose own never ends."""


class Hook(HTTPServer):
    """Answers by a list of statuses, None for silence, then 200; remembers the bodies."""

    def __init__(self, *statuses: int | None) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.statuses, self.bodies = list(statuses), list[Any]()
        self.ended = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/hook?secret=s"


class _Handler(QuietHandler):
    server: Hook

    def do_POST(self) -> None:
        self.server.bodies.append(self.read_json())
        status = self.server.statuses.pop(0) if self.server.statuses else 200
        if status is None:
            self.server.ended.wait(120)
            return
        if status == ENDLESS:
            self.send_response(200)
            self.end_headers()
            with suppress(OSError):
                while not self.server.ended.wait(0.05):
                    self.wfile.write(b"more")
            return
        self.answer(None, status)


@pytest.fixture
def hook() -> Iterator[Hook]:
    server = Hook()
    with serve(server):
        yield server
        server.ended.set()


def test_a_decision_is_a_line_for_people_and_an_object_for_programs(hook: Hook) -> None:
    webhook = Webhook(hook.url)
    webhook.notify(DECISION)
    webhook.close()
    (body,) = hook.bodies
    assert body["text"] == (
        "agent, version 212: quarantine (worse:reward); version 208 serves; reward -0.061 [-0.100, -0.020] over 312 of "
        "the canary's episodes"
    )
    assert (body["decision"]["number"], body["decision"]["numbers"]["reward.low"]) == (7, -0.1)


def test_a_number_without_a_form_in_json_is_null(hook: Hook) -> None:
    """It would be refused each time, and hold up all decisions after it."""
    webhook = Webhook(hook.url)
    webhook.notify(replace(DECISION, numbers={**DECISION.numbers, "perplexity.effect": math.inf}))
    webhook.close()
    (body,) = hook.bodies
    numbers = body["decision"]["numbers"]
    assert (numbers["perplexity.effect"], numbers["reward.low"]) == (None, -0.1)


def test_a_line_without_evidence_names_the_share() -> None:
    begun = PolicyDecision(
        model="m", run_id="main", number=1, action="canary", version=2, serving=1, canary=2, share=0.05,
        reason="operator", detail="why", decided_at_ms=0
    )  # fmt: skip
    assert describe(begun) == (
        "m, version 2: canary (operator, why); version 1 serves; version 2 has 5% of the episodes"
    )


async def test_a_hook_that_fails_or_hangs_gets_the_decision_again(hook: Hook, caplog: pytest.LogCaptureFixture) -> None:
    hook.statuses = [500, None, 404]
    webhook = Webhook(hook.url, timeout_s=0.3)
    asking = asyncio.create_task(_offer(webhook.notify, DECISION, asyncio.Event(), 0.01))
    while len(hook.bodies) < 2:  # noqa: ASYNC110 - looks at a server's list
        await asyncio.sleep(0.01)
    hook.ended.set()
    assert await asking
    webhook.close()
    assert len(hook.bodies) >= 4, "on a busy machine a good answer may come too late as well"
    assert {sent_body["decision"]["number"] for sent_body in hook.bodies} == {7}
    assert "secret=s" not in "".join(record.message for record in caplog.records if "failed" in record.message)


def test_a_hook_that_refuses_raises(hook: Hook) -> None:
    hook.statuses = [301]
    with pytest.raises(httpx.HTTPError, match="301"):
        Webhook(hook.url).notify(DECISION)


def test_an_answer_that_never_ends_is_not_waited_for() -> None:
    hook = Hook(ENDLESS)
    with serve(hook):
        webhook = Webhook(hook.url)
        posting = threading.Thread(target=webhook.post, args=({"text": "first"},), daemon=True)
        posting.start()
        posting.join(30)
        is_posting = posting.is_alive()
        hook.ended.set()
        assert not is_posting
        webhook.post({"text": "second"})
        webhook.close()
    assert hook.bodies == [{"text": "first"}, {"text": "second"}]


@pytest.mark.parametrize("url", ["hooks.example/secret", "ftp://hooks.example/secret", "https:///secret", "  "])
def test_an_address_that_nothing_can_be_posted_to_is_refused_at_the_start(url: str) -> None:
    with pytest.raises(ConfigurationError, match="https://") as refusal:
        Webhook(url)
    assert "secret" not in str(refusal.value)
