"""The chunks of a streamed chat completion to the same `ServerAnswer` that an unstreamed one gives.

Pure: chunks go in, one answer comes out, whichever way the server cut it. `StreamAccumulator` keeps references while
the agent reads its stream; `ChunkReader` puts them together later. Choices and tool calls are distinguished by their
`index`; ids and names come once, arguments in pieces. A chunk is JSON, or the client's object of it.
"""

from array import array
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any

from rollbus.producers.capture.surface import Asked
from rollbus.producers.turns.answer import (
    ENTRY_BYTES,
    ID_BYTES,
    AnswerChoice,
    ServerAnswer,
    Unread,
    count_of,
    fields_of,
    ids_of,
    kept_call,
    kept_fields,
    logprobs_of,
    number_of,
    plain,
    reasoning_of,
    text_of,
)

CHUNK_BYTES = 1500 + ENTRY_BYTES
"""About what the parts of a chunk take in memory, with the log-prob of one token."""
ORDINARY_BYTES = 500
"""The same of an ordinary chunk, of which only texts and numbers are kept."""
FIELDS = 5
"""Entries of a chunk in the list of what is kept."""
MAX_KEPT, READ_AT_ONCE = 10_000 * FIELDS, 100
"""Entries that are kept of one stream; of a longer one the oldest chunks are read, so many at a time."""


@dataclass(slots=True)
class _ToolCall:
    fields: dict[str, Any] = field(default_factory=dict)
    function: dict[str, Any] = field(default_factory=dict)
    arguments: list[str] = field(default_factory=list)
    has_function: bool = False


@dataclass(slots=True)
class _Choice:
    role: str | None = None
    content: list[str] = field(default_factory=list)
    refusal: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    tool_calls: dict[int, _ToolCall] = field(default_factory=dict)
    finish_reason: str | None = None
    tokens: list[str] = field(default_factory=list)
    logprobs: list[float | None] = field(default_factory=list)
    refusal_tokens: list[str] = field(default_factory=list)
    refusal_logprobs: list[float | None] = field(default_factory=list)
    token_ids: "array[int] | None" = None

    def add_token_ids(self, token_ids: Any) -> None:
        ids = ids_of(token_ids)
        if self.token_ids is None:
            self.token_ids = ids
        elif ids is not None:
            self.token_ids.extend(ids)


Kept = list[Any]
"""For each chunk five entries: of an ordinary one its finish reason, text, token, log-prob and token id; of any other
its fields with its choices and deltas, and four times None. There is no object for each chunk: the garbage collector
would run more often on the agent's thread.
"""


class StreamAccumulator:
    """Keeps a stream's chunks as they are when they come: the agent waits for the next one."""

    def __init__(self, reader: "ChunkReader | None" = None) -> None:
        """Start before the first chunk; by default of a chat."""
        self._kept: Kept | None = []
        """None once it was read."""
        self._reader = reader or ChunkReader()
        self._indexes: set[int] = set()
        """Of the choices in chunks that are not ordinary."""
        self._others = 0
        """Chunks that are not ordinary."""

    def keeper(self, hide: Asked | None) -> Callable[[Any], bool]:
        """Return what keeps an ordinary chunk in JSON, with a token of text as nearly all have, and takes out of it
        what `hide` does not ask for. It returns False for any other, and for the first, whose names hold for all.

        It is called for every token, on the agent's thread, so it looks at nothing that the form of the chunk spares.
        Only texts and numbers are kept: the garbage collector, which looks through all else, has nothing to do.
        """
        kept: Kept = self._kept if self._kept is not None else []
        keep, take_ids = kept.extend, dict.get if hide is None or hide.ids else dict.pop
        shows_logprobs = hide is None or hide.logprobs

        def keep_ordinary(chunk: Any) -> bool:
            try:
                (choice,) = chunk["choices"]
                delta = choice["delta"]
                content = delta["content"]
                if choice["index"] or (len(delta) != 1 and (len(delta) != 2 or "role" not in delta)):
                    return False
                if "usage" in chunk and chunk["usage"] is not None:
                    return False
                if "prompt_token_ids" in chunk or "prompt_token_ids" in choice or not 0 < len(kept) < MAX_KEPT:
                    return False
                token = logprob = token_id = logprobs = None
                if "logprobs" in choice and (logprobs := choice["logprobs"]) is not None:
                    (entry,) = logprobs["content"]  # of a refusal there are none next to content
                    token, logprob = entry["token"], entry["logprob"]
                    if "id" in entry:
                        return False
                finish_reason = choice["finish_reason"]
                if "token_ids" in choice:
                    (token_id,) = choice["token_ids"]
                    take_ids(choice, "token_ids")
                keep((finish_reason, content, token, logprob, token_id))
                if logprobs is not None and not shows_logprobs:
                    choice["logprobs"] = None
            except Exception:  # not of this form, in whichever way
                return False
            return True

        return keep_ordinary

    def add(self, chunk: Any, hide: Asked | None = None) -> bool:
        """Take the next chunk; return whether what `hide` does not ask for is taken out of it already."""
        kept = self._kept
        if kept is None:
            return False
        if len(kept) >= MAX_KEPT:
            self._reader.read_all(kept, most=READ_AT_ONCE)
        try:
            fields = _keep_any(chunk)
            kept += (fields, None, None, None, None)
            self._others += 1
            self._indexes.update(count_of(choice.get("index")) or 0 for choice in fields["choices"])
        except (AttributeError, TypeError, KeyError):  # not an object of the client: it is read at once
            self._reader.read_all(kept)
            self._reader.read(chunk)
        return False

    def answer(self, *, complete: bool = True) -> ServerAnswer | Unread:
        """Return what has come so far, to be put together when there is time; nothing more is taken."""
        kept, reader = [*(self._kept or ())], self._reader
        if self._kept is not None:
            self._kept.clear()  # for a keeper that is still asked
        self._kept, self._reader = None, ChunkReader()
        indexes = self._indexes | set(reader.indexes)
        chunks = len(kept) // FIELDS
        others = min(self._others, chunks)
        if others < chunks:
            indexes.add(0)  # of ordinary ones
        size = ORDINARY_BYTES * (chunks - others) + CHUNK_BYTES * others
        size += ID_BYTES * len(reader.prompt_token_ids or ())
        return Unread(lambda kept: reader.read_all(kept).answer(complete=complete), kept, len(indexes) or 1, size)


def _keep_any(chunk: Any) -> dict[str, Any]:
    """Return a chunk's fields as they are now, with its choices and their deltas."""
    fields = kept_fields(chunk)
    fields["choices"] = choices = [kept_fields(choice) for choice in fields["choices"] or ()]
    for choice in choices:
        if "text" in choice:  # an older completion
            continue
        choice["delta"] = delta = kept_fields(choice["delta"])
        if delta.get("tool_calls"):
            delta["tool_calls"] = [kept_call(call) for call in delta["tool_calls"]]
    return fields


class ChunkReader:
    """Puts the chunks of a stream together."""

    def __init__(self) -> None:
        """Start before the first chunk."""
        self._model = ""
        self._response_id: str | None = None
        self.prompt_token_ids: array[int] | None = None
        self._prompt_tokens: int | None = None
        self._completion_tokens: int | None = None
        self._choices: dict[int, _Choice] = {}

    @property
    def indexes(self) -> Collection[int]:
        """The choices so far."""
        return self._choices

    def read_all(self, kept: Kept, *, most: int | None = None) -> "ChunkReader":
        """Take what was kept, in order, or the first chunks of it."""
        taken = kept[: None if most is None else most * FIELDS]
        del kept[: len(taken)]
        for chunk in zip(*[iter(taken)] * FIELDS, strict=True):
            if isinstance(chunk[0], dict):
                self.read(chunk[0])
            else:
                self._read_ordinary(*chunk)
        return self

    def read(self, chunk: Any) -> None:
        """Take the next chunk."""
        field = fields_of(chunk)
        self._model = text_of(field("model")) or self._model
        self._response_id = text_of(field("id")) or self._response_id
        self._keep_prompt(field("prompt_token_ids"))
        if (usage := field("usage")) is not None:
            count = fields_of(usage)
            self._prompt_tokens = count_of(count("prompt_tokens"))
            self._completion_tokens = count_of(count("completion_tokens"))
        for choice in field("choices") or ():
            self._keep_prompt(fields_of(choice)("prompt_token_ids"))
            self._add_choice(choice)

    def _read_ordinary(self, finish_reason: Any, content: Any, token: Any, logprob: Any, token_id: Any) -> None:
        known = self._choice(0)
        known.finish_reason = text_of(finish_reason) or known.finish_reason
        _append(known.content, text_of(content))
        if token is not None:
            known.tokens.append(text_of(token) or "")
            known.logprobs.append(number_of(logprob))
        if token_id is not None:
            known.add_token_ids([token_id])

    def _keep_prompt(self, prompt_token_ids: Any) -> None:
        if self.prompt_token_ids is None:
            self.prompt_token_ids = ids_of(prompt_token_ids)

    def _add_choice(self, choice: Any) -> None:
        field = fields_of(choice)
        known = self._choice(count_of(field("index")) or 0)
        part = field("delta")
        delta = fields_of(part)
        known.role = known.role or text_of(delta("role"))
        known.finish_reason = text_of(field("finish_reason")) or known.finish_reason
        _append(known.content, text_of(delta("content")))
        _append(known.refusal, text_of(delta("refusal")))
        _append(known.reasoning, reasoning_of(part))
        for position, call in enumerate(delta("tool_calls") or ()):
            _add_tool_call(known, position, call)
        if (logprobs := field("logprobs")) is not None:
            _add_logprobs(known, logprobs)
        known.add_token_ids(field("token_ids"))

    def _choice(self, index: int) -> _Choice:
        return self._choices.setdefault(index, _Choice())

    def answer(self, *, complete: bool = True) -> ServerAnswer:
        """Return what has come so far; a stream that ended before each choice said why it did is not complete."""
        finished = bool(self._choices) and all(choice.finish_reason for choice in self._choices.values())
        return ServerAnswer(
            model=self._model,
            response_id=self._response_id,
            prompt_token_ids=self.prompt_token_ids,
            prompt_tokens=self._prompt_tokens,
            completion_tokens=self._completion_tokens,
            choices=tuple(_finished(index, choice) for index, choice in sorted(self._choices.items())),
            complete=complete and finished,
        )


def _append(pieces: list[str], text: str | None) -> None:
    if text is not None:
        pieces.append(text)


def _add_logprobs(known: _Choice, logprobs: Any) -> None:
    tokens, values = logprobs_of(logprobs)
    of_content = len(fields_of(logprobs)("content") or ())
    known.tokens.extend(tokens[:of_content])
    known.logprobs.extend(values[:of_content])
    known.refusal_tokens.extend(tokens[of_content:])
    known.refusal_logprobs.extend(values[of_content:])


def _add_tool_call(known: _Choice, position: int, delta: Any) -> None:
    index = count_of(fields_of(delta)("index"))
    call = known.tool_calls.setdefault(position if index is None else index, _ToolCall())
    for name, value in plain(delta).items():
        if name == "function" and isinstance(value, dict):
            call.has_function = True
            _append(call.arguments, value.pop("arguments", None))
            call.function.update({key: item for key, item in value.items() if item is not None})
        elif name != "index" and value is not None:
            call.fields[name] = value


def _finished(index: int, choice: _Choice) -> AnswerChoice:
    calls = []
    for _, call in sorted(choice.tool_calls.items()):
        function = {**call.function, "arguments": "".join(call.arguments)}
        calls.append({**call.fields, "function": function} if call.has_function else call.fields)
    return AnswerChoice(
        index=index,
        role=choice.role or "assistant",
        content=_joined(choice.content, also=bool(calls or choice.refusal)),
        refusal=_joined(choice.refusal),
        reasoning=_joined(choice.reasoning),
        tool_calls=tuple(calls),
        finish_reason=choice.finish_reason,
        tokens=(*choice.tokens, *choice.refusal_tokens),
        logprobs=(*choice.logprobs, *choice.refusal_logprobs),
        token_ids=choice.token_ids,
    )


def _joined(pieces: list[str], *, also: bool = False) -> str | None:
    """Join; None where nothing came, or only the empty first delta next to tool calls or a refusal."""
    text = "".join(pieces)
    return None if not pieces or (not text and also) else text
