"""Which rows of the cache hold the keys and values of which tokens, so that what requests share is read once.

Pure. Tokens are known by their beginning in blocks: the key of a block stands for it and all blocks before it. What a
key finds is compared token by token before it is used.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

BLOCK_TOKENS = 16
"""Shorter beginnings are not shared: reading them costs no more than copying them."""


@dataclass(frozen=True, slots=True)
class Shared:
    """The longest beginning that a row holds already."""

    row: int = -1
    tokens: int = 0


NOTHING = Shared()


@dataclass(frozen=True, slots=True)
class _Held:
    version: int
    tokens: Sequence[int]
    keys: tuple[int, ...]


@dataclass(slots=True)
class PrefixIndex:
    """Rows by what they hold."""

    _held_by_row: dict[int, _Held] = field(default_factory=dict)
    _rows_by_key: dict[int, dict[int, None]] = field(default_factory=dict)

    def hold(self, row: int, version: int, tokens: Sequence[int]) -> None:
        """Note that a row holds these tokens, as this version of the weights reads them."""
        self.forget(row)
        prefix = _Held(version, tokens, _keys(version, tokens))
        self._held_by_row[row] = prefix
        for key in prefix.keys:
            self._rows_by_key.setdefault(key, {})[row] = None

    def forget(self, row: int) -> None:
        """The row is written over from now on; harmless to repeat."""
        prefix = self._held_by_row.pop(row, None)
        for key in prefix.keys if prefix else ():
            rows = self._rows_by_key[key]
            del rows[row]
            if not rows:
                del self._rows_by_key[key]

    def find(self, version: int, tokens: Sequence[int]) -> Shared:
        """Return the longest beginning of these tokens that a row holds, without the last: its logits are asked for."""
        row = -1
        for key in _keys(version, tokens):
            if key not in self._rows_by_key:
                break
            row = next(reversed(self._rows_by_key[key]))
        if row < 0:
            return NOTHING
        prefix = self._held_by_row[row]
        shared = _common_length(prefix.tokens, tokens) if prefix.version == version else 0
        shared = min(shared, len(tokens) - 1)
        return Shared(row, shared) if shared >= BLOCK_TOKENS else NOTHING


def _keys(version: int, tokens: Sequence[int]) -> tuple[int, ...]:
    keys: list[int] = []
    key = hash(version)
    for start in range(0, len(tokens) - BLOCK_TOKENS + 1, BLOCK_TOKENS):
        key = hash((key, *tokens[start : start + BLOCK_TOKENS]))
        keys.append(key)
    return tuple(keys)


def _common_length(prompt: Sequence[int], other: Sequence[int]) -> int:
    pairs = enumerate(zip(prompt, other, strict=False))
    return next((at for at, (a, b) in pairs if a != b), min(len(prompt), len(other)))
