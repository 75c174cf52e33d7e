"""Turns of one process to a broker of its own at a thousand a second, and what was lost: nothing may be.

python -m benchmarks.capture.throughput [seconds] [turns per second]
"""

import asyncio
import sys
import time
from typing import Any

from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from benchmarks.capture.answer import MODEL, body, prompt
from benchmarks.streams.broker import broker
from rollbus.producers import Recorder, init
from rollbus.producers.capture.chat import CHAT
from rollbus.producers.turns.turn_record import Exchange
from rollbus.schemas.topics import EPISODE_EVENTS, PRODUCER_REPORTS

TOKENS = 50
TURNS_PER_EPISODE = 5
TURNS_PER_SECOND = 1000
FLUSH_S = 60.0


class Answer:
    """An answer with attributes, as the client gives it."""

    def __init__(self, fields: dict[str, Any]) -> None:
        """Take the fields over."""
        self.__dict__.update({key: _attributes(value) for key, value in fields.items()})


def _attributes(value: Any) -> Any:
    if isinstance(value, dict):
        return Answer(value)
    return [_attributes(element) for element in value] if isinstance(value, list) else value


def produce(recorder: Recorder, seconds: float, rate: int) -> int:
    """Record turns at this rate, or as fast as it goes where that is less; return how many."""
    request = {"model": MODEL, "messages": prompt()[:1]}
    answer = CHAT.read_response(_attributes(body(TOKENS)))
    start, turns = time.monotonic(), 0
    while (elapsed := time.monotonic() - start) < seconds:
        if turns > elapsed * rate:
            time.sleep(0.002)
            continue
        episode = recorder.start(task="bench")
        for _ in range(TURNS_PER_EPISODE):
            episode.record(Exchange(request=request, answer=answer), "")
        episode.end()
        turns += TURNS_PER_EPISODE
    return turns


async def _make_topics(address: str) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=address)
    await admin.start()
    names = [topic.full_name("bench.") for topic in (EPISODE_EVENTS, PRODUCER_REPORTS)]
    await admin.create_topics([NewTopic(name, 8, 1) for name in names])
    await admin.close()


def main(seconds: float = 60.0, rate: int = TURNS_PER_SECOND) -> None:
    """Start a broker, record, and print what came through."""
    with broker() as running:
        asyncio.run(_make_topics(running.bootstrap_servers))
        recorder = init(bootstrap_servers=running.bootstrap_servers, namespace="bench.")
        start, cpu, producer_s = time.monotonic(), time.process_time(), time.thread_time()
        turns = produce(recorder, seconds, rate)
        took, waiting = time.monotonic() - start, recorder.counters["events_queued"]
        whole = recorder.close(FLUSH_S)
        producer_s = time.thread_time() - producer_s
        delivering = time.process_time() - cpu - producer_s
        dropped = recorder.counts.total("events_dropped")
        print(f"{turns} turns of {TOKENS} tokens in {took:.0f} s: {turns / took:.0f} turns/s, {dropped} events dropped")
        each_us, delivering_us = producer_s / turns * 1e6, delivering / turns * 1e6
        print(f"  CPU per turn: {each_us:.0f} µs where it is recorded, {delivering_us:.0f} µs to deliver it")
        print(f"  {waiting} events waited at the end, all out afterwards: {whole}")
        print("  target: 1000 turns/s for a minute, nothing dropped at default limits")


if __name__ == "__main__":
    main(*(float(value) for value in sys.argv[1:2]), *(int(value) for value in sys.argv[2:3]))
