"""A model's answer, from the objects of the OpenAI client to one neutral form.

Reads attributes of whatever object the client returned and copes with what is missing: servers and client versions
differ in what they fill.
"""

import json
from array import array
from collections.abc import Callable, Mapping, Sequence, Set, ValuesView
from dataclasses import dataclass, replace
from typing import Any

from rollbus.schemas.errors import InvalidRecordError
from rollbus.schemas.records.tokens import encode_token_ids

TOKEN_ID_PREFIX = "token_id:"
"""vLLM's `--return-tokens-as-token-ids` writes each token as this and its id; survives wherever log-probs do."""
ENTRY_BYTES, ID_BYTES = 800, 36
"""About what the client's objects take in memory, for one token's log-prob and for one id."""
MAX_COUNT = 1 << 63
MOST_IDS, ID_DIGITS = 1 << 31, 10
"""Token ids are below the first; a longer text of digits is none."""
REASONING_FIELDS = ("reasoning_content", "reasoning")


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerChoice:
    """One of the answers asked for by `n`."""

    index: int = 0
    role: str = "assistant"
    content: str | None = None
    refusal: str | None = None
    reasoning: str | None = None
    tool_calls: tuple[Mapping[str, Any], ...] = ()
    """In the OpenAI form."""
    finish_reason: str | None = None
    tokens: tuple[str, ...] = ()
    """Token strings that come with the log-probs; only their `token_id:N` form is used."""
    logprobs: tuple[float | None, ...] = ()
    token_ids: Sequence[int] | None = None
    entries: tuple[Any, ...] = ()
    """What tokens and log-probs are still to be read from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerAnswer:
    """What the server said to one request."""

    model: str = ""
    response_id: str | None = None
    prompt_token_ids: Sequence[int] | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    choices: tuple[AnswerChoice, ...] = ()
    complete: bool = True
    """False where a stream was not read to its end."""
    problem: str | None = None
    """Why there is nothing in it."""


@dataclass(slots=True)
class Unread:
    """An answer as references to its parts, as they came: `read` makes a `ServerAnswer` of it. Not frozen, as
    it is made on the thread of an agent that waits.
    """

    make: Callable[[Any], ServerAnswer]
    parts: Any
    turns: int
    """How many choices it has; 1 where it has none."""
    size: int
    """Bytes that are held until it is read."""


def fields_of(value: Any) -> Callable[[str], Any]:
    """Return what reads a field of an object, or of what was kept of one; None where it has none.

    On the client's models a field that is missing costs 10 µs through `getattr`, which looks for a private attribute
    before it raises; their dictionaries answer at once.
    """
    if type(value) is dict:
        return value.get
    attributes: dict[str, Any] | None = getattr(value, "__dict__", None)
    if attributes is None or not hasattr(type(value), "__pydantic_fields__"):
        return lambda name: getattr(value, name, None)
    extra = value.__pydantic_extra__ or {}
    return lambda name: attributes[name] if name in attributes else extra.get(name)


def answer_of(response: Any) -> ServerAnswer:
    """Return the neutral form of a chat completion; ids are as they came and log-probs unread, which `read` does."""
    field = fields_of(response)
    usage = fields_of(field("usage"))
    raw_choices = field("choices") or ()
    prompt_ids = field("prompt_token_ids")
    if prompt_ids is None and raw_choices:
        prompt_ids = fields_of(raw_choices[0])("prompt_token_ids")
    return ServerAnswer(
        model=text_of(field("model")) or "",
        response_id=text_of(field("id")),
        prompt_token_ids=prompt_ids,
        prompt_tokens=count_of(usage("prompt_tokens")),
        completion_tokens=count_of(usage("completion_tokens")),
        choices=tuple(_choice_of(choice) for choice in raw_choices),
    )


def _choice_of(choice: Any) -> AnswerChoice:
    field, message = fields_of(choice), fields_of(fields_of(choice)("message"))
    return AnswerChoice(
        index=count_of(field("index")) or 0,
        role=text_of(message("role")) or "assistant",
        content=text_of(message("content")),
        refusal=text_of(message("refusal")),
        reasoning=_reasoning(message),
        tool_calls=tuple(tool_call_of(call) for call in message("tool_calls") or ()),
        finish_reason=text_of(field("finish_reason")),
        token_ids=field("token_ids"),
        entries=entries_of(field("logprobs")),
    )


def read(answer: ServerAnswer | Unread) -> ServerAnswer:
    """Return the answer with its token ids checked and its log-probs read: what `answer_of` leaves for later."""
    if isinstance(answer, Unread):
        answer = answer.make(answer.parts)
    return ServerAnswer(
        model=answer.model,
        response_id=answer.response_id,
        prompt_token_ids=ids_of(answer.prompt_token_ids),
        prompt_tokens=answer.prompt_tokens,
        completion_tokens=answer.completion_tokens,
        choices=tuple(map(_read_choice, answer.choices)),
        complete=answer.complete,
        problem=answer.problem,
    )


def _read_choice(choice: AnswerChoice) -> AnswerChoice:
    token_ids = ids_of(choice.token_ids)
    if not choice.entries:
        return replace(choice, token_ids=token_ids)
    tokens, logprobs = read_entries(choice.entries)
    return replace(choice, tokens=tokens, logprobs=logprobs, token_ids=token_ids, entries=())


def reasoning_of(message: Any) -> str | None:
    """Return the reasoning text of a message or a delta, under whichever name the server gives it."""
    return _reasoning(fields_of(message))


def _reasoning(message: Callable[[str], Any]) -> str | None:
    for name in REASONING_FIELDS:
        if (text := text_of(message(name))) is not None:
            return text
    return None


def entries_of(logprobs: Any) -> tuple[Any, ...]:
    """Return one entry per token; those of a refusal follow those of the content."""
    field = fields_of(logprobs)
    return (*(field("content") or ()), *(field("refusal") or ()))


def logprobs_of(logprobs: Any) -> tuple[tuple[str, ...], tuple[float | None, ...]]:
    """Return token strings and log-probs; those of a refusal follow those of the content."""
    return read_entries(entries_of(logprobs))


def read_entries(entries: Sequence[Any]) -> tuple[tuple[str, ...], tuple[float | None, ...]]:
    """Return token strings and log-probs of entries; llama.cpp's also have ids, which then replace the strings."""
    if entries and count_of(fields_of(entries[0])("id")) is not None:
        ids = [fields_of(entry)("id") for entry in entries]
        tokens = tuple(f"{TOKEN_ID_PREFIX}{token_id}" for token_id in ids)
        return tokens, tuple(number_of(fields_of(entry)("logprob")) for entry in entries)
    try:
        return tuple([entry.token for entry in entries]), tuple([entry.logprob for entry in entries])
    except AttributeError:  # a server that leaves fields out, or a client that does not know them
        fields = [fields_of(entry) for entry in entries]
        return tuple(text_of(field("token")) or "" for field in fields), tuple(
            number_of(field("logprob")) for field in fields
        )


def token_ids_of(choice: AnswerChoice) -> Sequence[int] | None:
    """Return the sampled ids: as the server gave them, else out of `token_id:N` strings; None where neither is
    whole.
    """
    if choice.token_ids:
        return choice.token_ids
    if not choice.tokens or not all(str(token).startswith(TOKEN_ID_PREFIX) for token in choice.tokens):
        return None
    numbers = [token[len(TOKEN_ID_PREFIX) :] for token in choice.tokens]
    if not all(number.isdecimal() and len(number) <= ID_DIGITS for number in numbers):
        return None
    ids = tuple(map(int, numbers))
    return ids if max(ids) < MOST_IDS else None


def tool_call_of(call: Any) -> Mapping[str, Any]:
    """Return a tool call as plain values, without the fields that are not set."""
    return dict(plain(call)) if isinstance(plain(call), Mapping) else {"value": plain(call)}


def plain(value: Any, *, as_text: bool = False) -> Any:
    """Return JSON-like values of whatever the host or the client put into a request or an answer; raises TypeError
    (or, `as_text`, writes the text of it), also on what is only known to be iterable: that may ask a database, or can
    be read only once, by the host.
    """
    if value is None or isinstance(value, str | int | float | bool):
        return value
    if isinstance(value, Mapping):
        return {str(key): plain(item, as_text=as_text) for key, item in value.items()}
    if hasattr(value, "model_dump"):
        return plain(value.model_dump(mode="json", exclude_unset=True), as_text=as_text)
    if isinstance(value, Sequence | Set | ValuesView) and not isinstance(value, bytes):
        return [plain(item, as_text=as_text) for item in value]
    if hasattr(value, "tolist"):  # numbers and arrays of NumPy and its like
        return plain(value.tolist(), as_text=as_text)
    if as_text:
        return str(value)
    raise TypeError(f"{type(value).__name__} has no JSON form")


def text_of(value: Any) -> str | None:
    """Return a string that UTF-8 can carry; None for anything else."""
    if not isinstance(value, str):
        return None
    return value if value.isascii() else value.encode("utf-8", "replace").decode()


def number_of(value: Any) -> float | None:
    """Return a number as float; None for anything else, and for a whole number that is larger than any float."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value)
    except OverflowError:
        return None


def count_of(value: Any) -> int | None:
    """Return a whole number that 64 bits hold, as a record's field does; None for anything else."""
    whole = isinstance(value, int) and not isinstance(value, bool) and -MAX_COUNT <= value < MAX_COUNT
    return value if whole else None


def ids_of(value: Any) -> "array[int] | None":
    """Return a list of token ids (whole numbers from 0, below 2³¹) as int32; None for anything else."""
    if value is None or not isinstance(value, Sequence) or isinstance(value, str | bytes):
        return None
    try:
        ids = array("i", value)  # refuses what is too large or no whole number, far faster than looking at each
        encode_token_ids(ids)  # refuses what is negative
    except (TypeError, OverflowError, InvalidRecordError):
        return None
    return ids


def canonical(value: Any) -> str:
    """Return JSON with sorted keys; raises TypeError where there is something in it that JSON does not know."""
    return json_of(plain(value))


def json_of(value: Any) -> str:
    """Return plain values as JSON with sorted keys."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def readable_text(value: Any) -> str | None:
    """Return text as it is, other values as JSON with the text of what JSON does not know; of what has no readable form
    its type.
    """
    if value is None or isinstance(value, str):
        return text_of(value)
    for form in (_json_or_text, str):
        try:
            return text_of(form(value))
        except Exception:  # the host's own objects may raise anything
            continue
    return f"<{type(value).__name__}>"


def _json_or_text(value: Any) -> str:
    plain_value = plain(value, as_text=True)
    return plain_value if isinstance(plain_value, str) else json_of(plain_value)
