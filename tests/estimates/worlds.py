"""Worlds whose answer is known: recorded episodes by one version, and what another one truly earns there.

Chance is an argument, and everything else a choice of numbers: bandits with several prompts and answers, games of
several turns, long answers whose weights spread, and versions that do what was never recorded.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import exp, log
from random import Random

from rollbus.estimates.episode import Step, WeightedEpisode

Probabilities = Sequence[float]
UNKNOWN = 1e-6
"""Of a token that neither log nor base know."""


@dataclass(frozen=True, slots=True)
class KnownWorld:
    """Draw recorded episodes."""

    draw: Callable[[Random, int], list[WeightedEpisode]]
    truth: float
    """What the other version earns."""
    earned: float
    """What those that are recorded earn."""
    low: float = 0.0
    """The least that an episode can earn; the most is 1."""


@dataclass(frozen=True, slots=True)
class KnownDrift:
    """Draw recorded answers to ask how far another version is from a third one, the base."""

    draw: Callable[[Random, int], list[tuple[float, float, int]]]
    """Of each answer: the log of its weight, the log-ratio of version and base, and its tokens."""
    truth: float
    """Nats per token of the version's own answers."""


def softmax(scores: Sequence[float]) -> list[float]:
    """Return probabilities."""
    powers = [exp(score) for score in scores]
    return [power / sum(powers) for power in powers]


def bandit(
    shift: float, *, prompts: int = 6, answers: int = 4, never: float = 0.0, most: float = 1.0, seed: int = 5
) -> KnownWorld:
    """Prompts with a few answers each, rewards 0 or 1; `shift` says how far the other version has moved.

    With `never` the other version gives that much of its probability to an answer that was never recorded. No answer is
    good with a greater probability than `most`.
    """
    fixed = Random(seed)
    good = [[most * fixed.random() for _ in range(answers)] for _ in range(prompts)]
    recorded_policy = [softmax([fixed.gauss(0, 0.7) for _ in range(answers)]) for _ in range(prompts)]
    other = [
        [(1 - never) * probability for probability in softmax([log(p) + shift * fixed.gauss(0, 1) for p in row])]
        for row in recorded_policy
    ]
    unseen = [fixed.random() for _ in range(prompts)]
    truth = sum(
        sum(p * g for p, g in zip(row, goods, strict=True)) + never * lost
        for row, goods, lost in zip(other, good, unseen, strict=True)
    ) / prompts  # fmt: skip

    def draw(chance: Random, episodes: int) -> list[WeightedEpisode]:
        drawn = []
        for number in range(episodes):
            prompt = chance.randrange(prompts)
            answer = choose(chance, recorded_policy[prompt])
            ratio = log(other[prompt][answer] / recorded_policy[prompt][answer])
            reward = float(chance.random() < good[prompt][answer])
            drawn.append(
                WeightedEpisode(
                    f"e{number}",
                    f"task {prompt % 2}",
                    f"prompt {prompt}",
                    (Step(ratio, reward),),
                    str(answer),
                    other[prompt][answer],
                )
            )
        return drawn

    earned = sum(
        p * g for row, goods in zip(recorded_policy, good, strict=True) for p, g in zip(row, goods, strict=True)
    )
    return KnownWorld(draw, truth, earned / prompts)


def game(shift: float, *, turns: int = 4) -> KnownWorld:
    """Two moves a turn; the good one earns 1 / turns at once. The other version takes it with another probability."""
    recorded_win = 0.5
    other_win = recorded_win + shift

    def draw(chance: Random, episodes: int) -> list[WeightedEpisode]:
        drawn = []
        for number in range(episodes):
            steps = []
            for _ in range(turns):
                good = chance.random() < recorded_win
                ratio = log((other_win if good else 1 - other_win) / (recorded_win if good else 1 - recorded_win))
                steps.append(Step(ratio, good / turns))
            drawn.append(WeightedEpisode(f"e{number}", "game", "opening", tuple(steps)))
        return drawn

    return KnownWorld(draw, other_win, recorded_win)


def long_answers(spread: float) -> KnownWorld:
    """Answers of many tokens: the logarithm of the weight is normal with this deviation, and the reward follows it."""

    def draw(chance: Random, episodes: int) -> list[WeightedEpisode]:
        drawn = []
        for number in range(episodes):
            likeness = chance.gauss(0, 1)
            good = chance.random() < 1 / (1 + exp(-likeness))
            ratio = spread * likeness - spread * spread / 2
            drawn.append(
                WeightedEpisode(f"e{number}", "write", f"prompt {number}", (Step(ratio, float(good)),), f"a{number}")
            )
        return drawn

    # Weighted, the likeness is normal around `spread`: the mean of the logistic function, by a fine sum.
    grid = [-8 + step / 100 for step in range(1601)]
    heights = [exp(-at * at / 2) for at in grid]
    truth = sum(h / (1 + exp(-(at + spread))) for h, at in zip(heights, grid, strict=True)) / sum(heights)
    return KnownWorld(draw, truth, 0.5)


def drift(
    moved: float,
    since: float,
    *,
    most_tokens: int = 1,
    prompts: int = 6,
    kinds: int = 6,
    never: float = 0.0,
    seed: int = 5,
) -> KnownDrift:
    """Answers of some tokens, the first kind of which ends one; both steps of a version are normal in the log-probs.

    `moved` is how far the recorded version is from the base, `since` how far the other one is from the recorded one.
    With `never` the other version gives that much of each token's probability to one that neither of them knows.
    """
    fixed = Random(seed)

    def shifted(row: Probabilities, by: float) -> list[float]:
        return softmax([log(p) + by * fixed.gauss(0, 1) for p in row])

    base = [softmax([fixed.gauss(0, 1) for _ in range(kinds)]) for _ in range(prompts)]
    recorded_policy = [shifted(row, moved) for row in base]
    other = [shifted(row, since) for row in recorded_policy]
    padded_rows = [[*((1 - UNKNOWN) * p for p in row), UNKNOWN] for row in (*base, *recorded_policy)]
    base, recorded_policy = padded_rows[:prompts], padded_rows[prompts:]
    other = [[*((1 - max(never, UNKNOWN)) * p for p in row), max(never, UNKNOWN)] for row in other]

    def draw(chance: Random, answers: int) -> list[tuple[float, float, int]]:
        drawn = []
        for _ in range(answers):
            prompt, tokens = chance.randrange(prompts), list[int]()
            while len(tokens) < most_tokens and 0 not in tokens:
                tokens.append(choose(chance, recorded_policy[prompt]))
            weight, apart = (sum(log(other[prompt][kind] / row[kind]) for kind in tokens)
                             for row in (recorded_policy[prompt], base[prompt]))  # fmt: skip
            drawn.append((weight, apart, len(tokens)))
        return drawn

    # Whether an answer goes on does not depend on its next token: so a sum over tokens has their mean number of terms.
    lengths = [sum((1 - row[0]) ** token for token in range(most_tokens)) for row in other]
    apart = [sum(p * log(p / q) for p, q in zip(*rows, strict=True)) for rows in zip(other, base, strict=True)]
    return KnownDrift(draw, sum(n * divergence for n, divergence in zip(lengths, apart, strict=True)) / sum(lengths))


def choose(chance: Random, probabilities: Probabilities) -> int:
    """Draw a number with these probabilities."""
    at = chance.random()
    return next((i for i, p in enumerate(accumulate(probabilities)) if at < p), len(probabilities) - 1)
