"""An opening's words to a few bytes that similar openings share: what is expected of an attempt looks there, too.

MinHash: each byte is chosen by one word of the opening, by the same rule in every text. Two openings share a byte about
as often as they share words, so each byte names a cell of openings alike. No model is asked, and the text itself cannot
be read from it.
"""

import re
from collections.abc import Iterable
from functools import lru_cache
from hashlib import blake2b
from itertools import islice

from rollbus.schemas.records.events import Message

BYTES = 4
"""Cells that an opening is in: for texts with a third of their words in common, four of five share at least one."""
MOST_WORDS = 64
"""Of the last message of the user, from its beginning: a limit on time."""
_WORD = re.compile(r"\w+")
_SIZE = 4


def sketch_opening(messages: Iterable[Message]) -> str:
    """Return the sketch as hexadecimal digits, of what the user said last; empty without a word."""
    last_text = next((message.content for message in reversed(tuple(messages)) if message.role == "user"), None)
    words = {match.group() for match in islice(_WORD.finditer((last_text or "").lower()), MOST_WORDS)}
    if not words:
        return ""
    hashes = [_hash(word) for word in words]
    least_digests = (
        min(digest[start : start + _SIZE] for digest in hashes) for start in range(0, BYTES * _SIZE, _SIZE)
    )
    return bytes(least[-1] for least in least_digests).hex()


@lru_cache(maxsize=20_000)
def _hash(word: str) -> bytes:
    return blake2b(word.encode(errors="replace"), digest_size=BYTES * _SIZE).digest()
