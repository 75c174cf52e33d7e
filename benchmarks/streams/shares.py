"""What a flood of one principal's episodes does to the steps of a run: honest groups, and ten times as many more.

python -m benchmarks.streams.shares [seed]

The stage is the worker's own. A step takes 16 members in two groups, and the trainer takes a batch each second. Groups
come by chance (Poisson). Where nobody signs, all are one principal's: the oldest group is trained first.
"""

import sys
from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np

from rollbus.schemas.records.config import BatchingConfig, RunConfig
from rollbus.schemas.records.groups import Group, TrainingBatch
from rollbus.streams.stages.curriculum.stage import CurriculumStage
from tests.builders import make_group, make_member, make_outcome
from tests.stepper import Stepper

SECONDS, GROUPS_PER_STEP, GROUP_SIZE = 300, 2, 8
FLOOD = "the flood"


@dataclass(frozen=True, slots=True)
class World:
    """How many groups come in a second, by whose they are."""

    groups_by_principal: dict[str, float]
    is_signed: bool


def honest(principals: int, groups: float) -> dict[str, float]:
    """Return so many principals that record so many groups a second together."""
    return {f"agent-{number}": groups / principals for number in range(principals)}


WORLDS: dict[str, dict[str, float]] = {
    "one agent that fills every step": honest(1, 2) | {FLOOD: 20},
    "three agents that fill every step": honest(3, 2) | {FLOOD: 20},
    "one agent that fills half of every step": honest(1, 1) | {FLOOD: 20},
    "one agent that fills a tenth of every step": honest(1, 0.2) | {FLOOD: 20},
    "two honest agents, 9 to 1, that bring half as much again as is trained": {"large": 2.7, FLOOD: 0.3},
    "two honest agents, 9 to 1, that bring half of what is trained": {"large": 0.9, FLOOD: 0.1},
}


def group_of(principal: str, number: int, step: int, *, is_signed: bool) -> Group:
    """Return a group of one principal, sampled by the newest version."""
    members = tuple(
        make_member(
            f"{principal}-{number}-{place}",
            place % 2,
            version=step,
            advantage=place % 2 - 0.5,
            principal=principal if is_signed else "",
        )
        for place in range(GROUP_SIZE)
    )
    return make_group(f"{principal}-{number}", members=members)


def play(world: World, seed: int) -> list[Counter[str]]:
    """Return of each batch how many members are whose."""
    chance, step = np.random.default_rng(seed), 0
    stepper = Stepper(CurriculumStage(RunConfig(batching=BatchingConfig(groups_per_step=GROUPS_PER_STEP))))
    stepper.tick()
    open_batch: TrainingBatch | None = None
    batches: list[Counter[str]] = []
    numbers: Counter[str] = Counter()
    for _ in range(SECONDS):
        arrivals = [who for who, rate in world.groups_by_principal.items() for _ in range(chance.poisson(rate))]
        chance.shuffle(arrivals)
        records: list[Any] = [] if open_batch is None else [make_outcome(open_batch, step=step + 1, base=step)]
        step += len(records)
        for who in arrivals:
            numbers[who] += 1
            records.append(group_of(who, numbers[who], step, is_signed=world.is_signed))
        outputs = [*stepper.feed(*records), *stepper.tick(1)]
        open_batch = next((output for output in outputs if isinstance(output, TrainingBatch)), None)
        if open_batch is not None:
            names = [member.trajectory_id for group in open_batch.groups for member in group.members]
            batches.append(Counter(name.rsplit("-", 2)[0] for name in names))
    return batches


def main() -> None:
    """Print a table: of each world the flood's share of the steps, with and without signatures."""
    seed = int(sys.argv[1]) if len(sys.argv) > 1 else 7
    print(f"seed {seed}, {SECONDS} steps of {GROUPS_PER_STEP * GROUP_SIZE} members\n")
    print("| honest principals | signed | the flood's share of the members | steps of the flood alone |")
    print("|---|---|---|---|")
    for name, groups_by_principal in WORLDS.items():
        for is_signed in (False, True):
            batches = play(World(groups_by_principal, is_signed), seed)
            members = sum((batch for batch in batches), Counter[str]())
            alone = sum(1 for batch in batches if batch[FLOOD] == batch.total())
            share, who = members[FLOOD] / members.total(), "each" if is_signed else "nobody"
            print(f"| {name} | {who} | {share:.0%} | {alone} of {len(batches)} |")


if __name__ == "__main__":
    main()
