"""A conversation whose every text comes from somebody who means harm, or from a program that goes wrong.

Written as the sink writes it: records → rows → ClickHouse. Each text that could run says so in `window.hacked`.
"""

import json
import math
import struct
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from rollbus.consumers.clickhouse.sink.ranges import PartitionBuffer
from rollbus.consumers.clickhouse.store.client import ClickHouse
from rollbus.consumers.clickhouse.store.migrator import migrate
from rollbus.consumers.clickhouse.store.origin import KafkaRecord
from rollbus.consumers.clickhouse.store.settings import ClickHouseSettings
from rollbus.schemas.codec import encode
from rollbus.schemas.ids import trajectory_id
from rollbus.schemas.records.events import Message
from tests.builders import (
    START_MS,
    make_ended,
    make_group,
    make_member,
    make_reward,
    make_score,
    make_started,
    make_tool,
    make_trajectory,
    make_turn,
)

SCRIPT = "<script>window.hacked = 1</script><img src=x onerror='window.hacked = 2'>"
ATTRIBUTE = "\" onmouseover=\"window.hacked = 3\" style='position:fixed;inset:0' x=\"' onclick='window.hacked = 4"
BACKWARDS = "pay \u202e001\u202c dollars, \u200bno\u2066thing\u2069 else \U000e0041\U000e0042 \u0007"
HUGE = "w" * 300_000
LONG = "\n".join(f"line {number}" for number in range(30_000))
LINK = "javascript:window.hacked=5"
EPISODE = "../%2F?#&\"><svg onload='window.hacked=6'>"
DEEP = "[" * 3_000 + "]" * 3_000
QUOTES = "> " * 4_000
EXACT = '{"order": 12345678901234567890, "price": 1.10}'
"""An id that is larger than any whole number of JavaScript, and a price with its last digit."""
GROUP = "g/../\"><b onmouseover='window.hacked=7'>%00"
RUN = "main"

CALLS: tuple[str, ...] = (
    json.dumps([{"id": "c1", "type": "function", "function": {"name": "look_up", "arguments": '{"where": "here"}'}}]),
    json.dumps([{"id": "c2", "function": {"name": SCRIPT, "arguments": "\ud83d half of a pair"}}]),
    json.dumps({"not": "a list"}),
    json.dumps([None, 7, "text", {"function": None}, {"custom": {"name": "x"}}]),
    "no JSON {[",
    "null",
)
"""As a server may answer: the first as it should, the others not."""
PARTS = json.dumps(
    [
        {"type": "text", "text": "What is in this picture?"},
        {"type": "image_url", "image_url": {"url": "https://elsewhere.example/spy.png"}},
        None,
    ]
)


def fill(settings: ClickHouseSettings, namespace: str = "rollbus.") -> str:
    """Make the tables and their rows; returns the id of the trajectory."""
    migrate(settings)
    client = ClickHouse(settings)
    try:
        for topic, records in topics().items():
            for table, rows in tables(namespace, topic, records):
                client.insert(table, rows)
    finally:
        client.close()
    return trajectory_id(EPISODE)


def tables(namespace: str, topic: str, records: Sequence[Any]) -> Iterator[tuple[str, Sequence[Any]]]:
    """Yield the rows of each table."""
    buffer = PartitionBuffer(namespace=namespace, topic=topic, partition=0, start=0)
    for offset, record in enumerate(records):
        buffer.add(KafkaRecord(topic, 0, offset, START_MS, b"key", encode(record)))
    cut_rows = buffer.cut()
    assert cut_rows is not None
    assert not cut_rows.dead_letters
    yield from cut_rows.tables.items()


def topics() -> dict[str, Sequence[Any]]:
    """Return the records of each topic."""
    identifier = trajectory_id(EPISODE)
    member = make_member(identifier, episode_id=EPISODE, components={SCRIPT: 1.0})
    return {
        "episode-events": list(events()),
        "trajectories": [
            make_trajectory(EPISODE, task=SCRIPT, agent=ATTRIBUTE, labels={ATTRIBUTE: SCRIPT, "user": LINK})
        ],
        "scores": [make_score(identifier, episode_id=EPISODE, task=SCRIPT, components={SCRIPT: 1.0})],
        "run-log": [make_group(GROUP, (1.0,), task=SCRIPT, members=(member,), run_id=RUN)],
    }


def events() -> Iterator[Any]:
    """Yield the episode, one text after the other."""
    yield make_started(EPISODE, task=SCRIPT, agent=ATTRIBUTE, labels={ATTRIBUTE: SCRIPT})
    number = 0
    for text in (SCRIPT, ATTRIBUTE, BACKWARDS, HUGE, LONG, LINK, ""):
        number += 1
        question = Message(role="user", content=text)
        yield make_turn(EPISODE, number, model=SCRIPT, added_messages=(question,), text=text)
    for calls in CALLS:
        number += 1
        answer = Message(role="assistant", tool_calls=calls)
        yield replace(make_turn(EPISODE, number), completion=answer)
    roles = Message(role="skip unseen\" onclick='window.hacked=8'", content="who am I?", name=ATTRIBUTE)
    shown_message = Message(role="user", parts=PARTS)
    broken = Message(role="user", parts="no JSON ]")
    thought = Message(role="assistant", content="Yes.", reasoning=f"Let me think. {SCRIPT}")
    yield replace(make_turn(EPISODE, number + 1, added_messages=(roles, shown_message, broken)), completion=thought)
    yield make_turn(EPISODE, number + 2, untrainable="no_logprobs")
    deep = Message(role="user", content=QUOTES, parts=DEEP)
    turn = make_turn(EPISODE, number + 3, added_messages=(deep,), text=QUOTES)
    yield replace(turn, logprobs=struct.pack("<2f", -1.0, -math.inf))  # our own encoder refuses that
    yield make_tool(EPISODE, number + 4, name=SCRIPT, arguments=r'{"x": "\ud800"}', result=SCRIPT + BACKWARDS)
    yield make_tool(EPISODE, number + 5, name="buy", arguments=EXACT, result=EXACT)
    yield make_tool(EPISODE, number + 6, name="deep", arguments=DEEP, result=DEEP)
    yield make_reward(EPISODE, 1.0, sequence=number + 7, name=SCRIPT, comment=ATTRIBUTE)
    yield make_ended(EPISODE, number + 8, error=SCRIPT)
