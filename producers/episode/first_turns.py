"""Warn in an agent's own log, within its first minute, if none of its turns can be trained.

Belongs to the thread that sends, except for `close`.
"""

import logging
from collections import Counter

from rollbus.producers.turns.advice import advise

logger = logging.getLogger(__name__)
FIRST_TURNS = 5
"""Few enough for the first minute, and more than one odd call."""


class FirstTurns:
    """Counts why the first turns cannot be trained, and writes one line if none of them can."""

    def __init__(self) -> None:
        """Count from the first turn on."""
        self._reasons: Counter[tuple[str, str, str]] = Counter()
        self._is_settled = False

    def add(self, reason: str | None, server: str, hook: str) -> None:
        """Count why a turn cannot be trained; None where it can, which ends the counting."""
        if self._is_settled:
            return
        if reason is None:
            self._is_settled = True
            return
        self._reasons[reason, server, hook] += 1
        if self._reasons.total() >= FIRST_TURNS:
            self.close()

    def close(self) -> None:
        """Write the line, unless there is no turn, one can be trained, or the line is written already."""
        if self._is_settled or not self._reasons:
            return
        self._is_settled = True
        (reason, server, hook), count = self._reasons.most_common(1)[0]
        logger.warning(
            "rollbus: none of the first %d turns can be trained: %s (%d of them, %s); %s",
            *(self._reasons.total(), reason, count, f"server {server}" if server else f"seen by {hook}"),
            advise(reason, hook),
        )
