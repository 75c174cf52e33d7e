"""Bound what one source, such as a user, has of a batch: who writes most must not decide alone what is learnt. Pure.

A source is the value of a label. Episodes without the label are one source together, so to leave it out helps nobody.
"""

from collections import Counter
from collections.abc import Mapping, Sequence


def find_excess(sources: Sequence[str], share: float) -> list[int]:
    """Return the positions that must go so that no source has more than its share of the rest; its first ones stay.

    A batch with fewer than 1 / share sources cannot keep to that: it loses all.
    """
    counts = Counter(sources)
    most = max(counts.values(), default=0)
    while most > share * sum(min(count, most) for count in counts.values()):
        most -= 1
    places: Counter[str] = Counter()
    excess = []
    for position, source in enumerate(sources):
        places[source] += 1
        if places[source] > most:
            excess.append(position)
    return excess


def over_share(labels: Sequence[Mapping[str, str]], shares: Mapping[str, float]) -> frozenset[int]:
    """Return the positions, each given by its labels, that must go for all of the shares to be kept."""
    positions_over: set[int] = set()
    settled = False
    while not settled:
        settled = True
        for label, share in sorted(shares.items()):
            positions_left = [position for position in range(len(labels)) if position not in positions_over]
            excess = find_excess([labels[position].get(label, "") for position in positions_left], share)
            positions_over.update(positions_left[position] for position in excess)
            settled = settled and not excess
    return frozenset(positions_over)
