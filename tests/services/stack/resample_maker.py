"""A maker of attempts that can be told to die: `python resample_maker.py <servers> <namespace> <file> [JSON]`.

Its agent writes the id of each attempt to the file as it begins. The JSON holds `die` (a point), `nth` (at the how
manyth time), and settings.
"""

import asyncio
import json
import logging
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

POINTS = ("taken", "marked", "begun", "made")
"""A request is read but not marked as taken; marked but not begun; its agent has begun; its agent is done."""


class Death:
    """Ends the process hard at a point, when it comes there for the nth time."""

    def __init__(self, point: str | None, nth: int) -> None:
        self._point, self._calls_left = point, nth

    def at(self, point: str) -> None:
        """Say where the process stands."""
        if point == self._point:
            self._calls_left -= 1
            if self._calls_left == 0:
                os.kill(os.getpid(), signal.SIGKILL)


def mortal(death: Death) -> None:
    """Let the consumer's commit and what comes after it be points."""
    from rollbus.resample import requests

    new_consumer = vars(requests)["new_consumer"]

    def dying(*arguments: Any, **options: Any) -> Any:
        consumer = new_consumer(*arguments, **options)
        commit = consumer.commit

        async def commit_or_die(offsets: Any) -> None:
            death.at("taken")
            await commit(offsets)
            death.at("marked")

        consumer.commit = commit_or_die
        return consumer

    vars(requests)["new_consumer"] = dying


async def main(servers: str, namespace: str, path: str, changes: dict[str, Any]) -> None:
    """Make attempts until killed or told to stop."""
    from rollbus.producers import MemorySink, init
    from rollbus.resample.attempts import Attempt, Resampler
    from rollbus.resample.requests import resample
    from tests.services.streams.fixtures import stream_settings

    death = Death(changes.pop("die", None), changes.pop("nth", 1))
    mortal(death)

    def agent(attempt: Attempt) -> None:
        with Path(path).open("a") as file:
            file.write(attempt.episode.id + "\n")
        death.at("begun")
        time.sleep(0.05)
        death.at("made")

    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    resampler = Resampler(agent, init(sink=MemorySink()), concurrency=1)
    await resample(stream_settings(servers, namespace, **changes), "main", resampler, stop=stop)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[3]))
    logging.basicConfig(level=logging.INFO)
    servers, namespace, path, *changes = sys.argv[1:]
    asyncio.run(main(servers, namespace, path, json.loads(changes[0]) if changes else {}))
