"""The small fitted model of the doubly robust estimate: what an episode will earn, by its prompt and its answer.

Means of what was seen, each shrunk towards the next wider one: answer to this prompt → prompt → task → all. An episode
is predicted by the others only: they are split into parts by a hash of their ids, and each part is predicted by the
rest (cross-fitting; Chernozhukov et al., Econometrics Journal 21(1), 2018). So the prediction is independent of the
reward that corrects it.

What the other version will earn is the mean over the answers that it may give. Of those that were recorded to the same
prompt its probability is known; for the rest of the probability the prompt's own mean is taken. An episode of several
turns has no such answers, and only its prompt counts.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b

from rollbus.estimates.episode import Logged

PARTS = 5
PRIOR_EPISODES = 4.0
"""With as many episodes of its own, a mean counts as much as the wider one."""


@dataclass(frozen=True, slots=True)
class Expected:
    """Two predictions of an episode's reward."""

    of_answer: float
    """Of what was done."""
    of_version: float
    """Of what the other version would do."""


class _Mean:
    __slots__ = ("count", "total")

    def __init__(self) -> None:
        self.count, self.total = 0, 0.0

    def shrunk(self, wider: float) -> float:
        return (self.total + PRIOR_EPISODES * wider) / (self.count + PRIOR_EPISODES)


def predict_rewards(episodes: Sequence[Logged]) -> list[Expected]:
    """Return the predictions of each episode, made from the others."""
    parts = [_part_of(episode.episode_id) for episode in episodes]
    answers: dict[str, dict[str, float]] = defaultdict(dict)
    for episode in episodes:
        if episode.answer:
            answers[episode.opening][episode.answer] = episode.answer_probability
    fitted = [
        _fit([e for e, episode_part in zip(episodes, parts, strict=True) if episode_part != part])
        for part in range(PARTS)
    ]
    return [
        _predict(fitted[part], episode, answers[episode.opening]) for episode, part in zip(episodes, parts, strict=True)
    ]


def _part_of(episode_id: str) -> int:
    return blake2b(episode_id.encode(), digest_size=4).digest()[0] % PARTS


def _fit(episodes: Sequence[Logged]) -> dict[tuple[str, ...], _Mean]:
    means: dict[tuple[str, ...], _Mean] = defaultdict(_Mean)
    for episode in episodes:
        reward = episode.reward
        for key in _keys(episode):
            means[key].count += 1
            means[key].total += reward
    return dict(means)


def _keys(episode: Logged) -> list[tuple[str, ...]]:
    keys: list[tuple[str, ...]] = [(), (episode.task,), (episode.task, episode.opening)]
    return [*keys, (episode.task, episode.opening, episode.answer)] if episode.answer else keys


def _predict(means: dict[tuple[str, ...], _Mean], episode: Logged, answers: dict[str, float]) -> Expected:
    overall = means.get(())
    prior = overall.total / overall.count if overall is not None and overall.count else 0.0
    for key in ((episode.task,), (episode.task, episode.opening)):
        prior = means[key].shrunk(prior) if key in means else prior

    def of(answer: str) -> float:
        mean = means.get((episode.task, episode.opening, answer))
        return prior if mean is None else mean.shrunk(prior)

    if not episode.answer:
        return Expected(prior, prior)
    gains = sum(probability * (of(answer) - prior) for answer, probability in answers.items())
    return Expected(of(episode.answer), prior + gains)
