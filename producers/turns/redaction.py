"""Apply the host's wishes to every text before it leaves: what is withheld, and what its `redact` function changes.

`redact` sees a text as it is, and once more for each layer of JSON or of a URL that hides something: `M\\u00fcller`
comes as Müller, too. It also sees what shapes the prompt and is not recorded, since the token ids spell that out.

Fails closed: a text whose redaction raised is replaced by a marker, what `redact` cannot read (an image, a field that
has no JSON form) by a digest, and the turn loses its token ids, which would give the text away. A withheld text is
replaced by a digest, so that equal openings still group.
"""

import hashlib
import json
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal
from urllib.parse import unquote

from rollbus.producers.turns.answer import REASONING_FIELDS, canonical, json_of, plain
from rollbus.schemas.records.events import Message
from rollbus.schemas.records.messages import MESSAGE_FIELDS

Redact = Callable[[str], str]
REDACTION_FAILED = "[redaction failed]"
RESULT_ROLES = ("tool", "function")
"""Of messages that say what a tool returned."""
ROLES = frozenset({"system", "developer", "user", "assistant", *RESULT_ROLES})
_TEXT_FIELDS = ("content", "name", "tool_calls", "parts", "reasoning")
Field = Literal["messages", "tools", "tool_calls", "labels", "comments", "errors", "tokens"]
"""What can be withheld: texts of prompts and completions, tool schemas, arguments and results of tools (in messages
too), label values, comments on rewards and exclusions, texts of errors, token ids with their log-probs.
"""
NOT_PROMPT = frozenset(
    {"model", "user", "safety_identifier", "prompt_cache_key", "metadata", "service_tier", "timeout", "include",
     "stream_options", "extra_headers", "extra_query", "previous_response_id", "logit_bias"}
)  # fmt: skip
"""Arguments of a call that no chat template sees. Any other may shape the prompt: also an unknown one."""
READABLE_PARTS = frozenset({"text", "input_text", "output_text", "refusal", "image_url", "input_image", "video_url"})
"""Kinds of parts whose texts say all there is, but for what their URL itself holds; others hold sounds and files."""
MAX_LAYERS = 6
"""Of JSON within JSON; a tool's arguments within a recorded call are two."""
_DIGEST_BYTES = 12
_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|x([0-9a-fA-F]{2})|([\"\\/bfnrt]))")
_CONTROLS = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
_DATA_URL = re.compile(r"data:[\w.+-]+/[\w.+-]+(?:;[\w.=+-]+)*,[^\s\"']*", re.IGNORECASE)


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
            masked = _mask_layers(text, self._privacy.redact)
        except KeyboardInterrupt:  # the user's, not the function's
            raise
        except BaseException as error:  # the host's code: whatever it raises (a Rust panic too), nothing may leak
            self.error, self.changed = error, True
            return REDACTION_FAILED
        self.changed = self.changed or masked != text
        return masked

    def look_at_request(self, request: Mapping[str, Any], *, besides: Collection[str]) -> None:
        """Look at what shapes the prompt and is not recorded: template arguments, `extra_body`, fields of messages that
        nobody knows. Their texts are not kept; what `redact` would change in them costs the turn its tokens.
        `besides` are arguments that are recorded.
        """
        if self._privacy.redact is None:
            return
        for name, value in request.items():
            if name == "messages":
                for message in value or ():
                    self._look_at(_find_unrecorded_fields(message))
            elif name not in NOT_PROMPT and name not in besides:
                self._look_at(value)

    def _look_at(self, value: Any) -> None:
        if not value or isinstance(value, bool | int | float):  # a client's "not given" is false, too
            return
        try:
            if isinstance(value, type):  # what an answer is to be parsed as
                value = value.model_json_schema()  # type: ignore[attr-defined]
            text = value if isinstance(value, str) else canonical(value)
        except Exception:  # no JSON form: its content is unknown
            self.changed = True
            return
        self.text(text, "messages")

    def parts(self, text: str | None, field: Field) -> str | None:
        """Return a message's parts as they may leave; where `redact` is set, those that hold no text are digests."""
        if not text or self._privacy.redact is None or field in self._privacy.withhold:
            return self.text(text, field)
        try:
            content = json.loads(text)
        except ValueError:
            content = text
        safe_parts = (
            [part if _is_readable(part) else _digest(json_of(part)) for part in content]
            if isinstance(content, list)
            else []
        )
        if isinstance(content, list) and safe_parts != content:
            self.changed, text = True, json_of(safe_parts)
        return self.text(text, field)

    def message(self, message: Message) -> Message:
        """Return the message with every text redacted."""
        if not self._privacy.changes_texts:
            return message
        of_tools: Field = "tool_calls" if "tool_calls" in self._privacy.withhold else "messages"
        of_rest = of_tools if message.role in RESULT_ROLES else "messages"
        masked: dict[str, Any] = {
            name: (self.parts if name == "parts" else self.text)(
                getattr(message, name), of_tools if name == "tool_calls" else of_rest
            )
            for name in _TEXT_FIELDS
        }
        if message.role not in ROLES:  # a text in its place
            masked["role"] = self.text(message.role, "messages")
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


def _mask_layers(text: str, redact: Redact) -> str:
    """Return the text as `redact` makes it; as decoded as it had to be for `redact` to find something."""
    masked = _call(redact, _DATA_URL.sub(lambda match: _digest(match[0]), text))
    plain = masked
    for _ in range(MAX_LAYERS):
        before, plain = plain, unquote(_join_surrogates(_ESCAPE.sub(_unescape, plain)))
        if plain == before:
            return masked
        if (redacted := _call(redact, plain)) != plain:
            masked = plain = redacted
    raise ValueError(f"a text is encoded more than {MAX_LAYERS} times")


def _call(redact: Redact, text: str) -> str:
    masked = redact(text)
    if not isinstance(masked, str):
        raise TypeError(f"redact returned {type(masked).__name__} instead of str")
    return masked


def _unescape(match: re.Match[str]) -> str:
    digits = match[1] or match[2]
    return chr(int(digits, 16)) if digits else _CONTROLS.get(match[3], match[3])


def _join_surrogates(text: str) -> str:
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _is_readable(part: Any) -> bool:
    return isinstance(part, str) or (isinstance(part, Mapping) and part.get("type", "text") in READABLE_PARTS)


def _find_unrecorded_fields(message: Any) -> Any:
    """Return the fields of a message that its record lacks, or the whole where it is not a mapping."""
    fields = plain(message)
    recorded_fields = {*MESSAGE_FIELDS, "refusal", *REASONING_FIELDS}
    other_fields = {name: value for name, value in fields.items() if name not in recorded_fields and value is not None}
    return other_fields or None
