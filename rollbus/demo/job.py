"""What a demo trains: its model, its traffic, its settings, its evaluation, and the words for them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from openai import AsyncOpenAI

from rollbus.demo.pace import SLOWEST
from rollbus.local.process.service import Service
from rollbus.schemas.records.steps import Evaluation
from rollbus.stack_settings import StackSettings

Progress = Callable[[int, int], None]
"""How many of how many are done."""
NAMESPACE = "demo."
MODEL = "agent"
TRAFFIC_ENDED = "are done"
"""In the log of the traffic's last process, once it has ended as it should."""
TRAFFIC_S = 1200.0
"""Longest time that traffic is planned to take: on a slower machine fewer episodes come."""
TIME_LIMIT_FACTOR = 1.2
"""How many times as long as its slowest rate says the traffic may take."""


@dataclass(frozen=True, slots=True)
class Words:
    """The texts that people read about one demo."""

    title: str
    """What the agent learns."""
    traffic: str
    """What happens while it learns, for the live view."""
    traffic_unit: str
    """Plural of what traffic brings: each is one attempt that a user waited for."""
    evaluation_unit: str
    """Plural of what an evaluation counts."""
    success: str
    """Name of the first outcome, as it follows a share."""
    result: str
    """The title of the plot."""


@dataclass(frozen=True, slots=True)
class Amounts:
    """How much traffic and evaluation a demo has; the command line may change it."""

    episodes: int
    """Of traffic."""
    episodes_per_s: float
    evaluated: int
    """Episodes of each evaluation."""
    share_of_evaluation_rate: float | None = None
    """Bound of `episodes_per_s`, as a share of what the machine evaluates per second; None keeps the rate."""
    min_episodes: int | None = None
    """Of traffic, where `episodes` would take longer than `TRAFFIC_S`; None if there must be `episodes` then, too."""

    def slow_to_machine(self, evaluation_s: float) -> "Amounts":
        """Return the amounts for a machine whose first evaluation took so long.

        Traffic that comes faster than a machine learns is trained on late, or not at all.
        """
        if self.share_of_evaluation_rate is None:
            return self
        rate = min(self.episodes_per_s, self.share_of_evaluation_rate * self.evaluated / evaluation_s)
        min_episodes = self.episodes if self.min_episodes is None else self.min_episodes
        episodes = max(min_episodes, min(self.episodes, round(rate * TRAFFIC_S)))
        return replace(self, episodes=episodes, episodes_per_s=rate)

    @property
    def time_limit_s(self) -> float:
        """How long the traffic may take; a ticket or game that has not begun by then is left out."""
        slowest = self.episodes_per_s
        if self.share_of_evaluation_rate is not None:
            slowest *= SLOWEST
        return TIME_LIMIT_FACTOR * self.episodes / slowest


@dataclass(frozen=True, slots=True)
class StackPlace:
    """Where the stack of this demo is."""

    stack: StackSettings
    settings_file: Path
    token: str

    @property
    def rate_file(self) -> Path:
        """Where the traffic reads how fast it comes; see `pace`."""
        return self.settings_file.with_name("traffic-per-second")


class DemoJob(Protocol):
    """What is particular to one demo: the rest is the same for all."""

    @property
    def run(self) -> str:
        """The run's name."""
        ...

    words: Words
    outcomes: Sequence[tuple[str, str]]
    """How an episode of the evaluation can end, each with its colour; the first is a success."""
    amounts: Amounts

    def make_base_model(self, seed: int, cache: Path) -> Path:
        """Return the folder of the base model, made or fetched now if it is not there; shows its progress."""
        ...

    def settings(self) -> dict[str, Any]:
        """Return the parts of the settings file that decide what learns, and how: `runs`, `trainer`, `art_server`."""
        ...

    def traffic(self, place: StackPlace, seed: int, amounts: Amounts) -> tuple[Service, ...]:
        """Return the processes in the order of their start; the last one ends by itself."""
        ...

    async def evaluate(
        self, client: AsyncOpenAI, version: int, *, seed: int, count: int, now_ms: int, progress: Progress | None
    ) -> Evaluation:
        """Measure `model@version`; the same seed and count measure the same things."""
        ...

    def references(self, seed: int, amounts: Amounts) -> tuple[tuple[str, float], ...]:
        """Return what others reach on the same evaluation, by name: shares of successes."""
        ...
