"""Tic-tac-toe as a demo's job: a tiny model of its own, eight attempts at each opening, the result as the reward."""

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from openai import AsyncOpenAI

from rollbus.demo.base_model import WarmStartSettings, ensure_base_model
from rollbus.demo.game.agents import AgentSettings
from rollbus.demo.game.evaluation import GAMES, evaluate, schedule
from rollbus.demo.game.game import Result, held_out_openings
from rollbus.demo.game.reference import fixed_order, lines_first, optimum, uniform, value_on
from rollbus.demo.job import MODEL, NAMESPACE, Amounts, Progress, StackPlace, Words
from rollbus.demo.processes import traffic_row
from rollbus.local.process.service import Service
from rollbus.schemas.records.steps import Evaluation
from rollbus.terminal.progress import show_progress

GROUP_SIZE = 8
GROUPS_PER_STEP = 16
"""128 episodes a step. 32 groups learn more steadily and take twice the time to show it."""
LEARNING_RATE = 4e-4
"""At 1e-3 the policy is certain after 3,000 episodes and illegal moves come back; at 3e-4 it only takes longer."""
ENTROPY_BONUS = 0.02
"""A bonus of 0.2 spreads probability over tokens that are not cells."""


class GameJob:
    """The job."""

    run = "tictactoe"
    words = Words(
        title="an agent learns tic-tac-toe from its own traffic",
        traffic="agents play, the policy learns",
        traffic_unit="games",
        evaluation_unit="held-out games against a random opponent",
        success="wins",
        result="Tic-tac-toe learned from its own traffic",
    )
    outcomes: Sequence[tuple[str, str]] = (
        (Result.WIN.value, "#3d9970"),
        (Result.DRAW.value, "#9fb6c3"),
        (Result.LOSS.value, "#d9d2c5"),
        (Result.ILLEGAL.value, "#c0392b"),
    )
    amounts = Amounts(episodes=6144, episodes_per_s=14.0, evaluated=GAMES)

    def make_base_model(self, seed: int, cache: Path) -> Path:
        """Teach the model to play as a beginner, unless a model of this seed is there."""
        with show_progress("teaching the base model to play as a beginner") as progress:
            return ensure_base_model(WarmStartSettings(seed=seed), cache, progress)

    def settings(self) -> dict[str, Any]:
        """Return what decides what learns, and how."""
        return {
            "runs": [
                {
                    "run_id": self.run,
                    "model": MODEL,
                    "filter": {"tasks": ["tictactoe"]},
                    "grouping": {
                        "strategy": "by_example",
                        "group_size": GROUP_SIZE,
                        "min_group_size": GROUP_SIZE // 2,
                        "window_ms": 60_000,
                        "advantage": "mean_std",
                    },
                    "curriculum": {"mode": "off"},
                    "batching": {
                        "groups_per_step": GROUPS_PER_STEP,
                        "batches_ahead": 1,
                        "max_waiting_groups": 2 * GROUPS_PER_STEP,
                        "max_off_policy_steps": 4,
                    },
                }
            ],
            "trainer": {
                "train": {
                    "learning_rate": LEARNING_RATE,
                    "loss": "cispo",
                    "ratio_max": 5.0,
                    "entropy_bonus": ENTROPY_BONUS,
                    "max_grad_norm": 1.0,
                }
            },
        }

    def traffic(self, place: StackPlace, seed: int, amounts: Amounts) -> tuple[Service, ...]:
        """Return the agents' process."""
        settings = AgentSettings(
            model_url=place.stack.model_url,
            bootstrap_servers=place.stack.bootstrap_servers,
            namespace=NAMESPACE,
            model=MODEL,
            seed=seed,
            episodes=amounts.episodes,
            group_size=GROUP_SIZE,
            episodes_per_s=amounts.episodes_per_s,
        )
        command = [sys.executable, "-m", "rollbus.demo.game.agents", json.dumps(asdict(settings))]
        return (traffic_row("agents", command, place.token),)

    async def evaluate(
        self, client: AsyncOpenAI, version: int, *, seed: int, count: int, now_ms: int, progress: Progress | None
    ) -> Evaluation:
        """Play the held-out games."""
        games = schedule(seed, count)
        return await evaluate(client, MODEL, version, games, run=self.run, seed=seed, now_ms=now_ms, progress=progress)

    def references(self, seed: int, amounts: Amounts) -> tuple[tuple[str, float], ...]:
        """Shares of wins on the held-out openings, by what the player knows."""
        players = (
            ("random legal play", uniform),
            ("best fixed order of cells", fixed_order),
            ("lines first, then that order", lines_first),
            ("perfect play", optimum),
        )
        return tuple((name, value_on(held_out_openings(), player).win) for name, player in players)
