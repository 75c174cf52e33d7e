"""An opening's words to a few bytes that similar openings share: what is expected of an attempt looks there, too.

MinHash: each byte is chosen by one word of the opening, by the same rule in every text. Two openings share a byte about
as often as they share words, so each byte names a cell of openings alike. No model is asked, and the text itself cannot
be read from it.

In scripts that are written without spaces, such as those of Chinese, Japanese and Thai, each pair of neighbouring
letters is a word.

Sketches are in the log, as part of scores. If this rule changes, so do the sketches of the texts that it changes for,
and their next attempts are in no cell of the earlier ones.
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
_UNSPACED = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff"  # Thai, Lao, Burmese, Khmer
    "\u3005-\u3007\u3040-\u30ff\uff66-\uff9f"  # kana
    "\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"  # Han
)
_INDIC = "\u0900-\u0963\u0966-\u0dff"  # with their vowel signs, which are not letters; without the end of a sentence
_ASCII_WORD = re.compile(r"\w+")
_WORD = re.compile(
    rf"[^\W{_UNSPACED}{_INDIC}]+|[{_INDIC}]+|[{_UNSPACED}](?=([{_UNSPACED}]))|(?<![{_UNSPACED}])[{_UNSPACED}](?![{_UNSPACED}])"
)
"""A word; or a letter of a script without spaces, with the next one as a group; or such a letter that is alone."""
_SIZE = 4


def sketch_opening(messages: Iterable[Message]) -> str:
    """Return the sketch as hexadecimal digits, of what the user said last; empty without a word."""
    last_text = next((message.content for message in reversed(tuple(messages)) if message.role == "user"), None)
    text = (last_text or "").lower()
    matches = islice((_ASCII_WORD if text.isascii() else _WORD).finditer(text), MOST_WORDS)
    words = {match[0] if match.lastindex is None else match[0] + match[1] for match in matches}
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
