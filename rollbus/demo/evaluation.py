"""One policy version, the held-out openings and fixed opponents → how the games ended, with 95 % intervals.

The list of games depends on the seed alone: openings in turn, each time against another opponent, each turn with a
sampling seed of its own. So an evaluation before and one after training play the same games, and either can be
repeated. The games are asked for by version (`name@7`) and are not recorded: nothing here can end up in training.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import blake2b

from openai import AsyncOpenAI

from rollbus.demo.game import Board, Opening, Result, held_out_openings
from rollbus.demo.opponents import OpponentName, seeded
from rollbus.demo.playing import play_game, whole_reply
from rollbus.demo.prompt import MAX_REPLY_TOKENS, messages
from rollbus.demo.statistics import Interval, Tally, difference

GAMES = 29 * 28
"""812: ± 3.4 points on a rate, ± 4.9 on a difference."""
CONCURRENCY = 64
"""Games at a time; more only fills the endpoint's queue."""
TEMPERATURE = 1.0
"""What training samples at; greedy play scores higher and says less about the policy."""


@dataclass(frozen=True, slots=True)
class Game:
    """One game of an evaluation."""

    index: int
    opening: Opening
    opponent_seed: str


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What one policy version did."""

    model: str
    version: int
    tally: Tally

    @property
    def wins(self) -> Interval:
        return self.tally.rate(Result.WIN)


@dataclass(frozen=True, slots=True)
class Comparison:
    """The same games, before and after."""

    before: Evaluation
    after: Evaluation

    @property
    def gain(self) -> Interval:
        return difference(self.after.wins, self.before.wins)

    @property
    def is_real(self) -> bool:
        """Whether the interval of the difference lies above zero."""
        return self.gain.low > 0


def schedule(seed: int, games: int = GAMES) -> tuple[Game, ...]:
    openings = held_out_openings()
    return tuple(Game(n, openings[n % len(openings)], f"evaluation-{seed}-{n}") for n in range(games))


async def evaluate(
    client: AsyncOpenAI,
    model: str,
    version: int,
    games: Sequence[Game],
    *,
    opponent: OpponentName = OpponentName.RANDOM,
    progress: Callable[[int, int], None] | None = None,
) -> Evaluation:
    """Play the games at `model@version`."""
    gate = asyncio.Semaphore(CONCURRENCY)
    done = 0

    async def one(game: Game) -> Result:
        nonlocal done
        async with gate:
            result = await _play(client, f"{model}@{version}", game, opponent)
        done += 1
        if progress:
            progress(done, len(games))
        return result

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(one(game)) for game in games]
    return Evaluation(model, version, Tally.of(task.result() for task in tasks))


async def _play(client: AsyncOpenAI, model: str, game: Game, opponent: OpponentName) -> Result:
    async def ask(board: Board, turn: int) -> str | None:
        answer = await client.chat.completions.create(
            model=model,
            messages=messages(board),
            max_completion_tokens=MAX_REPLY_TOKENS,
            temperature=TEMPERATURE,
            seed=_sampling_seed(game.opponent_seed, turn),
        )
        return whole_reply(answer.choices[0])

    return await play_game(game.opening, seeded(opponent, game.opponent_seed), ask)


def _sampling_seed(game_seed: str, turn: int) -> int:
    return int.from_bytes(blake2b(f"{game_seed}:{turn}".encode(), digest_size=4).digest())
