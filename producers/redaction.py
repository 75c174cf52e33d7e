"""Put the host's `redact` function between every text and the wire, and know whether it changed or failed on any.

Fails closed: a text whose redaction raised is replaced by a marker, and the turn loses its token ids, which would
give the text away.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from rollbus.schemas.events import Message

Redact = Callable[[str], str]
REDACTION_FAILED = "[redaction failed]"
_TEXT_FIELDS = ("content", "name", "tool_calls", "parts", "reasoning")


class Redactor:
    """One pass over the texts of one record."""

    def __init__(self, redact: Redact | None) -> None:
        """Remember nothing changed so far."""
        self._redact = redact
        self.changed = False
        self.error: Exception | None = None
        """The last thing that `redact` raised."""

    def text(self, text: str | None) -> str | None:
        """Return the text as it may leave the process."""
        if self._redact is None or not text:
            return text
        try:
            masked = self._redact(text)
            if not isinstance(masked, str):
                raise TypeError(f"redact returned {type(masked).__name__} instead of str")
        except Exception as error:  # the host's code: whatever it raises, nothing may leak
            self.error, self.changed = error, True
            return REDACTION_FAILED
        self.changed = self.changed or masked != text
        return masked

    def message(self, message: Message) -> Message:
        """Return the message with every text redacted."""
        if self._redact is None:
            return message
        masked: dict[str, Any] = {name: self.text(getattr(message, name)) for name in _TEXT_FIELDS}
        return replace(message, **masked)

    @property
    def reason(self) -> str | None:
        """Why the turn may not carry its tokens; None where no text was touched."""
        if self.error is not None:
            return "redaction_failed"
        return "masked_text" if self.changed else None
