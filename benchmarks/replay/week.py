"""How fast a week of the demo's traffic is decided again: times real time on one core, and what further cores give.

python -m benchmarks.replay.week [minutes of traffic] [processes …]

The traffic has the demo's rate and shape: 1.8 tickets a second, each with seven attempts off the hot path, so eight
episodes of one turn, and a tick in every partition each second. Some minutes of it are replayed through all stages, and
a week takes as much time for each record. Where this machine has fewer cores than a replay has processes, the wall says
nothing. So the figures are of processor time: with enough cores a replay ends when the busiest process does, which is
the one that puts in order, or the lanes, which share their work evenly.
"""

import asyncio
import sys
import time

from benchmarks.replay.load import load
from benchmarks.replay.run import measure
from benchmarks.streams.broker import broker
from benchmarks.streams.events import Shape
from benchmarks.trainer.verdicts import at_least

TICKETS_PER_S, ATTEMPTS, PARTITIONS = 1.8, 8, 4
TICKET = Shape(
    turns=1, prompt_tokens=150, tokens=1, text="The parcel came late and I want to know what I paid for it. " * 10
)
"""A prompt with four examples, and a team's name of one token."""
RECORDS_PER_S = TICKETS_PER_S * ATTEMPTS * TICKET.events + PARTITIONS
WEEK_S = 7 * 86_400
TARGET, TARGET_OF_CORE = 100.0, 0.8


def main(minutes: float, processes: tuple[int, ...]) -> None:
    """Fill a topic, replay it by each number of processes, and print what a week takes."""
    episodes = int(minutes * 60 * TICKETS_PER_S) * ATTEMPTS
    at_once = round(TICKETS_PER_S * ATTEMPTS)
    with broker() as running:
        namespace, servers = f"week-{time.time_ns()}.", running.bootstrap_servers
        records, size = asyncio.run(load(servers, namespace, episodes, at_once=at_once, shape=TICKET))
        print(
            f"{minutes:.0f} minutes of traffic: {records} records of {size / records:.0f} bytes, {RECORDS_PER_S:.0f}/s"
        )
        alone = None
        for how in ("dry", "written"):
            for count in processes:
                result = measure(servers, namespace, records, "benchmarks.replay.replay_run", "all", how, str(count))
                whole_us, own_us = (result[name] / records * 1e6 for name in ("cpu_seconds", "own_cpu_seconds"))
                show(how, count, whole_us, own_us, alone)
                alone = whole_us if count == 1 else alone


def show(how: str, count: int, whole_us: float, own_us: float, alone_us: float | None) -> None:
    """Print what so many processes take, and what as many cores would give."""
    if count == 1 or alone_us is None:
        times = 1e6 / whole_us / RECORDS_PER_S
        figures = f"{whole_us:.1f} CPU µs/record, a week in {WEEK_S / times / 60:.0f} minutes"
        print(at_least(f"{how}, one core, times real time", times, TARGET, figures))
        return
    cores = count + 1
    busiest = max(own_us, (whole_us - own_us) / count)
    further = (alone_us / busiest - 1) / (cores - 1)
    figures = (
        f"{alone_us / busiest:.2f} times one core; {whole_us:.1f} CPU µs/record, {own_us:.1f} of them to put in order"
    )
    print(at_least(f"{how}, {cores} cores, of each further core", further, TARGET_OF_CORE, figures))


if __name__ == "__main__":
    chosen = [int(argument) for argument in sys.argv[1:]] or [20, 1, 2, 3, 4]
    main(chosen[0], tuple(chosen[1:]))
