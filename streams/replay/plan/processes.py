"""How many processes a replay is worth, and which partitions each takes. Nothing that comes out depends on it."""

import pickle
from collections.abc import Sequence

from rollbus.schemas.records.replays import ReplayRange
from rollbus.streams.replay.plan.plan import ReplayPlan
from rollbus.streams.replay.plan.stages import PURE
from rollbus.streams.rewards.registry import ASKS_A_MODEL, Registry

WORTH_RECORDS = 30_000
"""What a process must have to do: to start one costs as much time as ten thousand records."""
WORTH_BYTES = 400 * 1024 * 1024
"""Memory that must be free for each: itself 100 MB, the rest open episodes and what it is ahead of its turn."""


def lanes_for(
    chosen_count: int | None, plan: ReplayPlan, ranges: Sequence[ReplayRange], *, cores: int, memory: int | None
) -> list[tuple[ReplayRange, ...]]:
    """Return the partitions of each process; none where one process does everything.

    `chosen_count` is what the user says; without it as many as there are cores, as far as work and memory allow.
    """
    filled_ranges = sorted((span for span in ranges if _size(span)), key=lambda span: (-_size(span), span.partition))
    if plan.stages[0] not in PURE:
        return []
    if chosen_count is None:
        records = sum(map(_size, filled_ranges))
        chosen_count = min(cores, records // WORTH_RECORDS, cores if memory is None else memory // WORTH_BYTES)
    count = min(chosen_count, len(filled_ranges))
    if count < 2:
        return []
    lanes: list[list[ReplayRange]] = [[] for _ in range(count)]
    for span in filled_ranges:
        min(lanes, key=lambda lane: sum(map(_size, lane))).append(span)
    return [tuple(sorted(lane, key=lambda span: span.partition)) for lane in lanes]


def functions_to_take_along(plan: ReplayPlan, registry: Registry) -> Registry | None:
    """Return the functions that lanes can ask themselves; None where they are asked in order, after them.

    That is so where a recorded configuration may change them, where they ask a model, or cannot leave this process.
    """
    if plan.scores != "computed" or plan.new_scoring is None or "scoring" not in plan.stages:
        return None
    kinds = {reward.type for reward in plan.new_scoring.rewards}
    if kinds & ASKS_A_MODEL:
        return None
    functions = {kind: registry[kind] for kind in sorted(kinds)}
    try:
        pickle.dumps(functions)
    except (pickle.PicklingError, AttributeError, TypeError):
        return None
    return functions


def _size(span: ReplayRange) -> int:
    return span.to_offset - span.from_offset
