"""One policy version, the held-out openings and fixed opponents → how the games ended, with 95 % intervals.

The list of games depends on the seed alone: openings in turn, each time against another opponent, each turn with
its own sampling seed. So an evaluation before and one after training play the same games, and either can be
repeated. They are played as the trainer plays its validation set (`trainer/playing`): asked for by version (`name@7`)
and not recorded, so nothing here can end up in training.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b

from openai import AsyncOpenAI

from rollbus.demo.game.game import Board, Opening, Result, held_out_openings, seeded
from rollbus.demo.game.prompt import MAX_REPLY_TOKENS, messages, play_game, read_whole_reply
from rollbus.schemas.ids import content_hash
from rollbus.schemas.records.steps import Evaluation
from rollbus.trainer.validation.agents import EvaluationContext, EvaluationTask
from rollbus.trainer.validation.evaluation import build_evaluation
from rollbus.trainer.validation.playing import play_tasks
from rollbus.trainer.validation.settings import PlayLimits

NAME = "tictactoe-held-out"
GAMES = 29 * 28
"""812: ± 3.4 points on a rate, ± 4.9 on a difference."""
CONCURRENCY = 64
"""Games at a time; more only fills the endpoint's queue."""
TEMPERATURE = 1.0
"""What training samples at; greedy play scores higher and shows less of the policy."""


@dataclass(frozen=True, slots=True)
class EvaluationGame:
    """One game of an evaluation."""

    index: int
    opening: Opening
    opponent_seed: str


def schedule(seed: int, games: int = GAMES) -> tuple[EvaluationGame, ...]:
    openings = held_out_openings()
    return tuple(EvaluationGame(n, openings[n % len(openings)], f"evaluation-{seed}-{n}") for n in range(games))


async def evaluate(
    client: AsyncOpenAI,
    model: str,
    version: int,
    games: Sequence[EvaluationGame],
    *,
    run: str,
    seed: int,
    now_ms: int,
    progress: Callable[[int, int], None] | None = None,
) -> Evaluation:
    """Play the games at `model@version`. The same evaluation has the same id whenever it is played."""

    async def agent(task: EvaluationTask, context: EvaluationContext) -> Mapping[str, float]:
        outcome = await _play(client, context.model, games[task.index])
        return {result.value: float(result is outcome) for result in Result}

    tasks = [EvaluationTask(game.index, game.opening.id, 0, _sampling_seed(game.opponent_seed, 0)) for game in games]
    context = EvaluationContext(f"{model}@{version}", str(client.base_url))
    samples = await play_tasks(agent, tasks, context, limits=PlayLimits(concurrency=CONCURRENCY), progress=progress)
    return build_evaluation(
        samples,
        model=model,
        policy_version=version,
        name=NAME,
        now_ms=now_ms,
        run_id=run,
        seed=seed,
        set_hash=content_hash([[game.opening.id, game.opponent_seed] for game in games]),
    )


async def _play(client: AsyncOpenAI, model: str, game: EvaluationGame) -> Result:
    async def ask(board: Board, turn: int) -> str | None:
        answer = await client.chat.completions.create(
            model=model,
            messages=messages(board),
            max_completion_tokens=MAX_REPLY_TOKENS,
            temperature=TEMPERATURE,
            seed=_sampling_seed(game.opponent_seed, turn),
        )
        return read_whole_reply(answer.choices[0])

    return await play_game(game.opening, seeded(game.opponent_seed), ask)


def _sampling_seed(game_seed: str, turn: int) -> int:
    return int.from_bytes(blake2b(f"{game_seed}:{turn}".encode(), digest_size=4).digest())
