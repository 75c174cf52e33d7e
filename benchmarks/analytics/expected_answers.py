"""A number of generated trajectories → the answers that saved questions must give about them. Pure."""

from collections import Counter
from typing import Any

from benchmarks.analytics.generate import pending_from
from benchmarks.analytics.shape import GROUP_SIZE, TURNS

Answers = dict[str, Any]


def expected(trajectories: int) -> Answers:
    """Return by question what `summary` must make of its answer."""
    fates = fate_counts(trajectories)
    late = len(range(7, trajectories, 1000))
    lost = {name: fates[name] for name in ("no_signal", "untrainable", "stale")}
    refused = fates["untrainable"] * TURNS
    dropped = sum(lost.values())
    return {
        "fate_of_every_trajectory": dict(fates) | {"missing_events": late, "all": trajectories + late},
        "accounts": {
            "event": (6 * trajectories, 6 * trajectories - late, late, 0, {"late_event": late}),
            "episode": (trajectories + late, trajectories, late, 0, {"missing_events": late}),
            "trajectory": (trajectories, fates["trained"], dropped, fates["pending"], lost),
        },
        "drops_by_reason": {
            "no_signal": len([g for g in range(pending_from(trajectories) // GROUP_SIZE) if g % 10 < 3]),
            "untrainable": fates["untrainable"],
            "stale": fates["stale"],
            "late_event": late,
            "missing_events": late,
        },
        "untrainable_turns": {"no_logprobs": (refused, round(refused / (trajectories * TURNS), 6))},
        "tools_against_reward": {
            "look": (len(range(2, trajectories, 4)), 0),
            "search": (len(range(0, trajectories, 4)), len(range(0, trajectories, 20))),
        },
        "is_anything_lost": {"episode-events": (6 * trajectories, 6 * trajectories, 0, 0)},
        "dead_letters_by_class": {
            "assembly": len(range(1, trajectories, 1000)),
            "sink": len(range(0, trajectories, 1000)),
        },
    }


def fate_counts(trajectories: int) -> Counter[str]:
    """Return how many trajectories have which fate."""
    pending = pending_from(trajectories)
    return Counter(
        "untrainable"
        if number % 50 == 49
        else "pending"
        if number >= pending
        else "no_signal"
        if number // GROUP_SIZE % 10 < 3
        else "stale"
        if number % 50 == 48
        else "trained"
        for number in range(trajectories)
    )


def summary(question: str, rows: list[dict[str, Any]]) -> Any:
    """Return the part of an answer that `expected` describes."""
    match question:
        case "fate_of_every_trajectory":
            return {row["reason"] or row["fate"]: row["trajectories"] for row in rows}
        case "accounts":
            names = ("emitted", "used", "dropped", "pending", "dropped_by_reason")
            return {row["unit"]: tuple(row[name] for name in names) for row in rows if row["unit"] != "group"}
        case "drops_by_reason":
            return {row["reason"]: row["drops"] for row in rows}
        case "untrainable_turns":
            return {row["reason"]: (row["turns"], round(row["share"], 6)) for row in rows}
        case "tools_against_reward":
            return {row["tool"]: (row["calls"], row["errors"]) for row in rows}
        case "is_anything_lost":
            return {row["topic"]: (row["stored"], row["in_tables"], row["holes"], row["behind"]) for row in rows}
        case _:
            return {row["stage"]: row["letters"] for row in rows}
