"""On a real broker: those who follow decisions hear of the newest at once, and of an older one never."""

import asyncio
import threading
from typing import Any

import pytest

from rollbus.schemas.codec import encode
from rollbus.schemas.errors import RejectedError
from rollbus.schemas.records.delivery import PolicyDecision
from rollbus.schemas.topics import POLICY_DECISIONS
from rollbus.streams.kafka.settings import StreamSettings
from rollbus.streams.kafka.topics_on_broker import ensure_topics
from rollbus.trainer.art_server.control.following import DecisionFollower
from rollbus.trainer.backends.model_settings import DecisionLog
from tests.services.streams.fixtures import send, stream_settings
from tests.waiting import until

pytestmark = pytest.mark.services


def make_decision(number: int, **fields: Any) -> PolicyDecision:
    defaults: dict[str, Any] = {"model": "agent", "action": "canary", "serving": 1, "canary": 2, "reason": "r"}
    return PolicyDecision(run_id="main", number=number, decided_at_ms=0, **(defaults | fields))


async def publish(settings: StreamSettings, *decisions: PolicyDecision) -> None:
    await send(settings, POLICY_DECISIONS.name, [(decision.model.encode(), encode(decision)) for decision in decisions])


async def test_a_new_server_gets_the_newest_decision_and_then_each_later_one(kafka: str, namespace: str) -> None:
    settings = stream_settings(kafka, namespace)
    await ensure_topics(settings, [])
    await publish(settings, *map(make_decision, range(1, 9)), make_decision(9, model="other"))
    heard = list[int]()

    def use(decision: PolicyDecision) -> None:
        heard.append(decision.number)
        if decision.number == 10:
            raise RejectedError("its checkpoint is gone")
        if decision.number == 11:
            raise RuntimeError("unforeseen")

    following = DecisionFollower(DecisionLog(settings.kafka, namespace), "agent", use)
    following.start()
    await until(lambda: heard == [8], "the newest is not heard")
    await publish(settings, make_decision(10))
    await until(lambda: heard[-1] == 10, "the next is not heard")
    await until(lambda: following.trouble is not None, "a decision that cannot be followed is not reported")
    assert following.trouble == "decision 10 on agent cannot be followed: its checkpoint is gone"
    await publish(settings, make_decision(11))
    await until(lambda: heard[-1] == 11, "after a refusal nothing is heard")
    await publish(settings, make_decision(12, action="quarantine", canary=None))
    await until(lambda: heard[-1] == 12, "after an unforeseen error nothing is heard")
    await until(lambda: following.trouble is None, "it is still reported after one that was followed")
    await asyncio.to_thread(following.stop)
    assert not [thread for thread in threading.enumerate() if thread.name == "decisions"]
    assert heard[:2] == [8, 10]
