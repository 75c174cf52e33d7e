"""Token ids → the text of each, if the model's tokenizer is available; the log holds only ids.

A token may hold half a character; the character then belongs to the token that completes it.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

from rollbus.schemas.errors import ConfigurationError

Texts = Callable[[Sequence[int]], list[str]]

_INCOMPLETE = "\ufffd"
CONTEXT = 8
"""Tokens decoded together: a character has at most four bytes, and the text before a token may change its blanks."""


def load_texts(place: Path) -> Texts:
    """Return the function for a tokenizer.json or the folder of a model; raises ConfigurationError."""
    path = place / "tokenizer.json" if place.is_dir() else place
    try:
        from tokenizers import Tokenizer  # type: ignore[import-untyped, unused-ignore]
    except ModuleNotFoundError as error:
        raise ConfigurationError("--tokenizer needs the package tokenizers; run: pip install tokenizers") from error
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises Exception itself
        raise ConfigurationError(f"{path} is not a tokenizer.json: {error}") from error
    return lambda ids: decode_each(ids, lambda some: str(tokenizer.decode(list(some), skip_special_tokens=False)))


def decode_each(ids: Sequence[int], decode: Callable[[Sequence[int]], str]) -> list[str]:
    """Return what each token adds to the text of those before it."""
    texts: list[str] = []
    start = 0
    for end in range(1, len(ids) + 1):
        start = max(start, end - CONTEXT)
        before, now = decode(ids[start : end - 1]), decode(ids[start:end])
        complete = before.rstrip(_INCOMPLETE)
        texts.append("" if now.endswith(_INCOMPLETE) else now[len(complete) :] if now.startswith(complete) else now)
    return texts
