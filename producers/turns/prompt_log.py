"""What an episode's turns already carried, so that each turn sends only the messages that are new.

Keeps a digest per message, not the messages. A prompt is compared with every history kept; the longest shared
beginning is its prefix.
"""

import hashlib
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from rollbus.schemas.ids import canonical_json, hash_bytes
from rollbus.schemas.records.events import Message
from rollbus.schemas.records.messages import message_fields

MAX_HISTORIES = 32
"""Parallel conversations of one episode; an older one that comes back is sent again in full."""
_DIGEST_BYTES = 16
Digests = tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Split:
    """A prompt, as what was sent before and what is new."""

    prefix_count: int
    prefix_hash: str
    """Equal to `schemas.messages.history_hash` of the prefix; empty without one."""
    added: tuple[Message, ...]


class PromptLog:
    """The histories of one episode and writer."""

    def __init__(self) -> None:
        """Start with nothing sent."""
        self._histories: OrderedDict[Digests, None] = OrderedDict()

    def send(self, prompt: Sequence[Message], completion: Message) -> Split:
        """Split a prompt, and remember it and its completion as sent."""
        texts = [canonical_json(message_fields(message)) for message in prompt]
        digests = tuple(map(_digest, texts))
        prefix = max((_count_shared(digests, history) for history in self._histories), default=0)
        self._remember(digests, _digest(canonical_json(message_fields(completion))))
        return Split(
            prefix, hash_bytes(f"[{','.join(texts[:prefix])}]".encode()) if prefix else "", tuple(prompt[prefix:])
        )

    def _remember(self, prompt: Digests, completion: bytes) -> None:
        for history in list(self._histories):
            if prompt[: len(history)] == history:
                del self._histories[history]  # the new history holds all that this one held
        self._histories[*prompt, completion] = None
        while len(self._histories) > MAX_HISTORIES:
            self._histories.popitem(last=False)


def _digest(text: str) -> bytes:
    return hashlib.blake2b(text.encode(), digest_size=_DIGEST_BYTES).digest()


def _count_shared(earlier: Digests, later: Digests) -> int:
    count = 0
    for digest, other in zip(earlier, later, strict=False):
        if digest != other:
            break
        count += 1
    return count
