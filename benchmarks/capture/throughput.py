"""Turns of one process to a broker of its own at a thousand a second, and what was lost: nothing may be.

python -m benchmarks.capture.throughput [seconds] [turns per second]
"""

import asyncio
import sys
import time

from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from openai._models import construct_type  # what the client itself makes of an answer
from openai.types.chat import ChatCompletion

from benchmarks.capture.answer import MODEL, body, prompt
from benchmarks.common import at_most, broker
from rollbus.producers import Recorder, init
from rollbus.producers.capture.chat import CHAT
from rollbus.producers.turns.turn_record import Exchange
from rollbus.schemas.topics import EPISODE_EVENTS, PRODUCER_REPORTS

TOKENS = 50
TURNS_PER_EPISODE = 5
TURNS_PER_SECOND = 1000
FLUSH_S = 60.0


def produce(recorder: Recorder, seconds: float, rate: int) -> int:
    """Record turns at this rate, or as fast as it goes where that is less; return how many."""
    request = {"model": MODEL, "messages": prompt()[:1]}
    answer = CHAT.read_response(construct_type(type_=ChatCompletion, value=body(TOKENS)))
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
        start, cpu_s, producer_s = time.monotonic(), time.process_time(), time.thread_time()
        turns = produce(recorder, seconds, rate)
        took_s = time.monotonic() - start
        recorder.close(FLUSH_S)
        producer_s = time.thread_time() - producer_s
        delivering_s = time.process_time() - cpu_s - producer_s
        dropped = recorder.counts.total("events_dropped")
    costs = f"{producer_s / turns * 1e6:.0f} CPU µs a turn to record, {delivering_s / turns * 1e6:.0f} to deliver"
    print(at_most("events dropped", dropped, 0, f"{turns} turns of {TOKENS} tokens, {turns / took_s:.0f}/s; {costs}"))


if __name__ == "__main__":
    main(*(float(value) for value in sys.argv[1:2]), *(int(value) for value in sys.argv[2:3]))
