"""The demo's production traffic: agents that play tic-tac-toe and reach Kafka only through the recorder.

Groups of attempts at the same opening, against the same opponent, start at a steady rate, whatever training does with
them; if the model answers more slowly than that, fewer run. It ends after a number of episodes, or at SIGTERM once
the games in progress are over.

Run as `python -m rollbus.demo.game.agents SETTINGS_AS_JSON`.
"""

import asyncio
import contextlib
import json
import logging
import random
import sys
from collections.abc import Iterator
from dataclasses import dataclass

from openai import AsyncOpenAI, OpenAIError

import rollbus.producers
from rollbus.demo.game.game import Board, Opening, Result, seeded, training_openings
from rollbus.demo.game.prompt import MAX_REPLY_TOKENS, TASK, messages, play_game, read_whole_reply, reward
from rollbus.demo.traffic import bring, local_client
from rollbus.producers import Recorder
from rollbus.runtime.credentials import read_token
from rollbus.terminal.log_lines import log_to_stderr

logger = logging.getLogger(__name__)

TEMPERATURE = 1.0
"""Training takes the log-probs for those of the distribution that was sampled from."""
PAUSE_AFTER_FAILURE_S = 1.0
FLUSH_S = 20.0


@dataclass(frozen=True, slots=True)
class AgentSettings:
    """The settings of the agents' process."""

    model_url: str
    """Ends in /v1."""
    bootstrap_servers: str
    namespace: str
    model: str = "agent"
    seed: int = 0
    episodes: int | None = None
    """None plays until SIGTERM."""
    group_size: int = 8
    episodes_per_s: float = 14.0
    games_at_once: int = 64
    producer: str = "tictactoe-agents"


@dataclass(frozen=True, slots=True)
class Attempts:
    """One group: the same opening and opponent, tried several times."""

    group_id: str
    opening: Opening
    opponent_seed: str


def attempts(seed: int) -> Iterator[Attempts]:
    """Yield groups without end, the same for the same seed; an opening repeats only after all the others."""
    chance = random.Random(seed)
    number = 0
    while True:
        openings = list(training_openings())
        chance.shuffle(openings)
        for opening in openings:
            yield Attempts(f"game-{seed}-{number:05d}-{opening.id}", opening, f"agents-{seed}-{number}")
            number += 1


class Agents:
    """Plays groups of games at a steady rate."""

    def __init__(self, settings: AgentSettings, recorder: Recorder, client: AsyncOpenAI) -> None:
        """`client` is wrapped here; everything it is asked inside an episode is recorded."""
        self._settings, self._recorder = settings, recorder
        self._client = recorder.wrap(client, function="player")
        self._places = asyncio.Semaphore(settings.games_at_once)
        self._stopping = asyncio.Event()
        self.played = 0
        self.failed = 0

    def stop(self) -> None:
        """Start no more groups; `run` returns once the games in progress are over."""
        self._stopping.set()

    async def run(self) -> None:
        """Play until stopped, or until the number of episodes is reached; groups are never cut."""
        size, limit = self._settings.group_size, self._settings.episodes
        due = asyncio.get_running_loop().time()
        async with asyncio.TaskGroup() as games:
            for number, group in enumerate(attempts(self._settings.seed)):
                if limit is not None and number * size >= limit:
                    break
                due = await self._wait_for_turn(due)
                if self._stopping.is_set():
                    break
                for attempt in range(size):
                    await self._places.acquire()
                    games.create_task(self._play(group, attempt))
        logger.info("agents are done: played=%d failed=%d", self.played, self.failed)

    async def _wait_for_turn(self, due: float) -> float:
        """Wait until `due`, or until stopped; return when the next group is due. Time lost is not made up for."""
        now = asyncio.get_running_loop().time()
        if due > now:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), due - now)
        return max(due, now) + self._settings.group_size / self._settings.episodes_per_s

    async def _play(self, group: Attempts, attempt: int) -> None:
        try:
            await self._attempt(group, attempt)
            self.played += 1
        except OpenAIError as error:  # the episode has ended with this error and is on record
            self.failed += 1
            logger.warning("game failed: group=%s attempt=%d %s", group.group_id, attempt, error)
            await asyncio.sleep(PAUSE_AFTER_FAILURE_S)
        finally:
            self._places.release()

    async def _attempt(self, group: Attempts, attempt: int) -> Result:
        labels = {"opponent": "random", "opening": group.opening.id, "attempt": str(attempt)}
        async with self._recorder.episode(
            task=TASK,
            agent="player",
            example_id=group.opening.id,
            group_id=group.group_id,
            group_size=self._settings.group_size,
            labels=labels,
        ) as episode:
            result = await play_game(group.opening, seeded(group.opponent_seed), self._ask)
            episode.reward(reward(result), comment=result.value)
        return result

    async def _ask(self, board: Board, turn: int) -> str | None:
        answer = await self._client.chat.completions.create(
            model=self._settings.model,
            messages=messages(board),
            max_completion_tokens=MAX_REPLY_TOKENS,
            temperature=TEMPERATURE,
            extra_headers=self._recorder.headers(),  # the endpoint gives the whole game one version
        )
        return read_whole_reply(answer.choices[0])


async def play(settings: AgentSettings) -> None:
    """Connect, play, deliver what was recorded."""
    recorder = rollbus.producers.init(
        bootstrap_servers=settings.bootstrap_servers,
        namespace=settings.namespace,
        producer=settings.producer,
        environment="demo",
        logprob_mode="raw",
        report_interval_s=5.0,
    )
    async with local_client(settings.model_url, read_token(settings.model_url)) as client:
        await bring(Agents(settings, recorder, client), recorder, flush_s=FLUSH_S)


if __name__ == "__main__":
    log_to_stderr()
    asyncio.run(play(AgentSettings(**json.loads(sys.argv[1]))))
