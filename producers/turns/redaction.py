"""Apply the host's wishes to every text before it leaves: what is withheld, and what its `redact` function changes.

Fails closed: a text whose redaction raised is replaced by a marker, and the turn loses its token ids, which would
give the text away. A withheld text is replaced by a digest, so that equal openings still group.
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

from rollbus.schemas.records.events import Message

Redact = Callable[[str], str]
REDACTION_FAILED = "[redaction failed]"
RESULT_ROLES = ("tool", "function")
"""Of messages that say what a tool returned."""
_TEXT_FIELDS = ("content", "name", "tool_calls", "parts", "reasoning")
Field = Literal["messages", "tools", "tool_calls", "labels", "comments", "errors", "tokens"]
"""What can be withheld: texts of prompts and completions, tool schemas, arguments and results of tools (in messages
too), label values, comments on rewards and exclusions, texts of errors, token ids with their log-probs.
"""
_DIGEST_BYTES = 12


@dataclass(frozen=True, slots=True)
class Privacy:
    """What may leave the process."""

    redact: Redact | None = None
    withhold: frozenset[Field] = frozenset()

    @property
    def changes_texts(self) -> bool:
        """Whether any text may leave in another form than it came."""
        return self.redact is not None or bool(self.withhold)


class Redactor:
    """One pass over the texts of one record."""

    def __init__(self, privacy: Privacy) -> None:
        """Remember nothing changed so far."""
        self._privacy = privacy
        self.changed = False
        self.error: BaseException | None = None
        """The last thing that `redact` raised."""

    def text(self, text: str | None, field: Field) -> str | None:
        """Return the text as it may leave the process."""
        if not text:
            return text
        if field in self._privacy.withhold:
            return _digest(text)
        if self._privacy.redact is None:
            return text
        try:
            masked = self._privacy.redact(text)
            if not isinstance(masked, str):
                raise TypeError(f"redact returned {type(masked).__name__} instead of str")
        except KeyboardInterrupt:  # the user's, not the function's
            raise
        except BaseException as error:  # the host's code: whatever it raises (a Rust panic too), nothing may leak
            self.error, self.changed = error, True
            return REDACTION_FAILED
        self.changed = self.changed or masked != text
        return masked

    def message(self, message: Message) -> Message:
        """Return the message with every text redacted."""
        if not self._privacy.changes_texts:
            return message
        of_tools: Field = "tool_calls" if "tool_calls" in self._privacy.withhold else "messages"
        of_rest = of_tools if message.role in RESULT_ROLES else "messages"
        masked: dict[str, Any] = {
            name: self.text(getattr(message, name), of_tools if name == "tool_calls" else of_rest)
            for name in _TEXT_FIELDS
        }
        return replace(message, **masked)

    def spelt_out(self, message: Message) -> Message:
        """Return a message whose content is token ids, which `redact` cannot read."""
        withheld = bool(self._privacy.withhold & {"messages", "tokens"})
        if self._privacy.redact is None and not withheld:
            return message
        self.changed = self.changed or not withheld
        return replace(message, content=_digest(message.content or ""))

    @property
    def reason(self) -> str | None:
        """Why the turn may not carry its tokens; None where no text was touched."""
        if self.error is not None:
            return "redaction_failed"
        if self.changed:
            return "masked_text"
        return "tokens_withheld" if "tokens" in self._privacy.withhold else None


def _digest(text: str) -> str:
    data = text.encode("utf-8", "surrogatepass")
    return f"[withheld {hashlib.blake2b(data, digest_size=_DIGEST_BYTES).hexdigest()}]"
