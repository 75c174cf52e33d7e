"""Find the keys that are due at a stream time, in an order that does not depend on how the state was built.

A heap of earliest guesses: a deadline that has moved is looked up again when its guess is due, so an event that
prolongs a wait costs nothing.
"""

import heapq
from collections.abc import Callable, Iterable


class Deadlines:
    """Deadlines of the keys of an index; the index knows each key's present deadline."""

    def __init__(self, deadline_of: Callable[[str], int | None]) -> None:
        self._deadline_of = deadline_of
        self._heap: list[tuple[int, str]] = []
        self._guesses: dict[str, int] = {}

    def rebuild(self, keys: Iterable[str]) -> None:
        """Start again from these keys."""
        self._heap, self._guesses = [], {}
        for key in keys:
            self.watch(key)

    def watch(self, key: str) -> None:
        """Watch a key whose deadline is new or may be earlier than before."""
        deadline = self._deadline_of(key)
        if deadline is None:
            return
        guess = self._guesses.get(key)
        if guess is None or deadline < guess:
            self._guesses[key] = deadline
            heapq.heappush(self._heap, (deadline, key))

    def due(self, now_ms: int) -> list[str]:
        """Return the keys whose deadline is at or before `now_ms`, by deadline and key, and stop watching them."""
        due_keys = []
        while self._heap and self._heap[0][0] <= now_ms:
            guess, key = heapq.heappop(self._heap)
            if self._guesses.get(key) != guess:
                continue
            del self._guesses[key]
            deadline = self._deadline_of(key)
            if deadline is None:
                continue
            if deadline <= now_ms:
                due_keys.append((deadline, key))
            else:
                self.watch(key)
        return [key for _, key in sorted(due_keys)]
