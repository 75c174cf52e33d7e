"""The text of tokens as they come, without decoding all of them for each new one.

Text is final up to the last token that ended on a whole character. Only later tokens are decoded again, with the final
ones just before them, since some tokenizers write a token's leading space only after another token.
"""

from collections.abc import Sequence
from typing import Any

from rollbus.trainer.art_server.endpoint.tokenizer import REPLACEMENT


class GrowingText:
    """Add tokens one by one; `text` is what all of them decode to."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._settled = ""
        self._token_ids: list[int] = []
        """The tokens since then, after the final ones that they are decoded with."""
        self._context = 0
        """How many of them are final."""
        self.text = ""

    def add(self, token_id: int) -> None:
        """Add the next token."""
        self._token_ids.append(token_id)
        before, after = self._decode(self._token_ids[: self._context]), self._decode(self._token_ids)
        self.text = self._settled + after[len(before) :]
        if len(after) > len(before) and not after.endswith(REPLACEMENT):
            self._settled = self.text
            self._token_ids = self._token_ids[self._context :]
            self._context = len(self._token_ids)

    def _decode(self, token_ids: list[int]) -> str:
        decoded: str = self._tokenizer.decode(token_ids, skip_special_tokens=True) if token_ids else ""
        return decoded


def find_stop(text: str, stops: Sequence[str]) -> int | None:
    """Return where the first of the stop strings begins, if there is one."""
    places = [text.find(stop) for stop in stops]
    return min((at for at in places if at >= 0), default=None)
