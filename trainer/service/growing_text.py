"""The text of tokens as they come, each decoded a few times and not once for every token after it.

Text is settled up to the last token that ended on a whole character; only what came since is decoded again, with the
settled tokens just before it, since some tokenizers write a token's leading space only behind another.
"""

from __future__ import annotations

from typing import Any

from rollbus.trainer.service.tokenizer import REPLACEMENT


class GrowingText:
    """Add tokens one by one; `text` is what all of them decode to."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._settled = ""
        self._token_ids: list[int] = []
        """Those that came since, behind the settled ones that they are decoded with."""
        self._context = 0
        """How many of them are settled."""
        self.text = ""

    def add(self, token_id: int) -> None:
        """Take the next token in."""
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
