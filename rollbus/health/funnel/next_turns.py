"""What users did next, in one line for a person: turns by signal, how many are unclear, and who agrees. Pure."""

from collections.abc import Sequence

from rollbus.health.funnel.numbers import NextTurnCount


def describe_next_turns(counts: Sequence[NextTurnCount]) -> str:
    """Return the line; empty if no user did anything that a component reads."""
    signals = [count for count in counts if count.kind == "signal"]
    turns = sum(count.turns for count in signals)
    if not turns:
        return ""
    clear = [f"{count.turns - count.matching} {count.name}" for count in signals if count.turns > count.matching]
    unclear = sum(count.matching for count in signals)
    parts = [f"users answered {turns} {'turn' if turns == 1 else 'turns'}: {', '.join([*clear, f'{unclear} unclear'])}"]
    parts += [f"{count.name} agree on {count.matching} of {count.turns}" for count in counts if count.kind == "pair"]
    parts += [
        f"{count.name} agrees with explicit verdicts on {count.matching} of {count.turns}"
        for count in counts
        if count.kind == "verdict"
    ]
    return "; ".join(parts)
