"""One request and its answer to the fields of the turns it makes: one per choice, redacted, judged, without the
envelope.

Pure. The envelope (ids, sequence, times) is the episode's.
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rollbus.producers.turns.answer import (
    AnswerChoice,
    ServerAnswer,
    Unread,
    canonical,
    ids_of,
    number_of,
    plain,
    read,
    text_of,
    token_ids_of,
)
from rollbus.producers.turns.model_server import server_of
from rollbus.producers.turns.redaction import Privacy, Redactor
from rollbus.producers.turns.sampling_settings import NEUTRAL, sampling_of, sampling_problem
from rollbus.producers.turns.verdict import clean_logprobs, judge
from rollbus.schemas.ids import hash_bytes
from rollbus.schemas.records.events import LogprobMode, Message
from rollbus.schemas.records.tokens import encode_logprobs, encode_token_ids

_VERSIONED = re.compile(r"@(?:v|step)?(\d{1,9})$")
"""`name@version`, the version a number."""
TEXT_PARTS = ("text", "input_text", "output_text", "refusal")
"""Parts of a message's content that the ids spell out; of an image or a sound they hold only a place."""
MEDIA_INPUT = "media_input"
TOOLS_FIELDS = ("tools", "functions")
ABANDONED = "abandoned"
NOT_CAPTURED = "not_captured"
LOGPROBS_REFUSED = "logprobs_refused"
NO_CHOICE = "no_choice"
ECHO = "echo"
"""The request's field, and the reason: the answer repeats the prompt, and its tokens with it."""


@dataclass(slots=True, kw_only=True)
class Exchange:
    """A request with its answer; not frozen, as it is made on the thread of an agent that waits."""

    request: Mapping[str, Any]
    """Keyword arguments of the call as the application made it."""
    answer: ServerAnswer | Unread
    streamed: bool = False
    latency_ms: int | None = None
    withheld: str | None = None
    """Why the tokens cannot be trusted or were not given, known before looking."""
    refused: Collection[str] = ()
    """What the server would not give; see `surface.ADDED`."""
    logprob_mode: LogprobMode = "unknown"
    hook: str = ""
    """Which of ours saw the call: `wrap`, `turn`, or a library's name."""
    server: str = ""
    """The address that was asked, as far as it is known."""

    @property
    def turns(self) -> int:
        """How many turns it makes: one per choice, one for an answer without any."""
        return self.answer.turns if isinstance(self.answer, Unread) else len(self.answer.choices) or 1

    def with_answer_read(self) -> "Exchange":
        """Return it with the answer in its compact form: without the strings of tokens whose ids are there."""
        answer = read(self.answer)
        choices = (choice if choice.token_ids is None else replace(choice, tokens=()) for choice in answer.choices)
        return replace(self, answer=replace(answer, choices=tuple(choices)))


def exchange_of(
    messages: Sequence[Any],
    answer: str | Mapping[str, Any],
    token_ids: Sequence[int] | None,
    logprobs: Sequence[float] | None,
    prompt_token_ids: Sequence[int] | None,
    model: str,
    tools: Sequence[Any] | None,
    finish_reason: str | None,
    temperature: float | None,
    *,
    logprob_mode: LogprobMode,
) -> Exchange:
    """Return the exchange that a caller describes by hand; the server's count is that of the ids given, and nothing but
    the temperature has changed the distribution.
    """
    message: Mapping[str, Any] = {"content": answer} if isinstance(answer, str) else plain(answer)
    choice = AnswerChoice(
        content=text_of(message.get("content")),
        refusal=text_of(message.get("refusal")),
        reasoning=text_of(message.get("reasoning_content")) or text_of(message.get("reasoning")),
        tool_calls=tuple(message.get("tool_calls") or ()),
        finish_reason=finish_reason,
        logprobs=() if logprobs is None else tuple(map(number_of, plain(list(logprobs)))),
        token_ids=None if token_ids is None else ids_of(list(token_ids)),
    )
    whole = ServerAnswer(
        model=model,
        prompt_token_ids=None if prompt_token_ids is None else ids_of(list(prompt_token_ids)),
        prompt_tokens=None if prompt_token_ids is None else len(prompt_token_ids),
        completion_tokens=None if token_ids is None else len(token_ids),
        choices=(choice,),
    )
    request = {"model": model, "messages": plain(list(messages)), "tools": plain(list(tools)) if tools else None}
    if temperature is not None:
        request |= {**NEUTRAL, "temperature": temperature}
    return Exchange(request=request, answer=whole, logprob_mode=logprob_mode, hook="turn")


@dataclass(frozen=True, slots=True)
class Draft:
    """A turn that lacks its envelope, its prefix and, where it was sent before, loses its tools."""

    prompt: tuple[Message, ...]
    completion: Message
    fields: Mapping[str, Any]
    redaction_error: BaseException | None = None


def drafts_of(exchange: Exchange, privacy: Privacy) -> list[Draft]:
    """Return one draft per choice; of a choice that was asked for and did not come, one without completion."""
    answer = read(exchange.answer)
    request = exchange.request
    redactor = Redactor(privacy)
    masked = redactor.spelt_out if ids_of(request.get("prompt")) else redactor.message
    prompt = tuple(masked(message_of(message)) for message in request.get("messages") or ())
    tools = redactor.text(tools_json(request), "tools")
    redactor.look_at_request(request, besides=(*TOOLS_FIELDS, "prompt"))
    sampled = [token_ids_of(choice) for choice in answer.choices]
    sampled_tokens = None if any(ids is None for ids in sampled) else sum(len(ids or ()) for ids in sampled)
    model = text_of(answer.model) or ""
    shared = {
        "model": model or text_of(request.get("model")) or "",
        "policy_version": policy_version_of(model),
        "response_id": answer.response_id,
        "logprob_mode": exchange.logprob_mode,
        "tools_hash": hash_bytes(tools.encode()) if tools else "",
        "tools": tools,
        "prompt_tokens": answer.prompt_tokens,
        "completion_tokens": answer.completion_tokens,
        "latency_ms": exchange.latency_ms,
        "streamed": exchange.streamed,
        "server": server_of(exchange.server),
        **sampling_of(request),
    }
    sampling = sampling_problem(request, shared, exchange.refused)
    drafts = []
    missing = range(len(answer.choices), exchange.turns)
    choices = (*answer.choices, *(AnswerChoice(index=index) for index in missing))
    for position, (choice, token_ids) in enumerate(zip(choices, [*sampled, *(None for _ in missing)], strict=True)):
        choice_redactor = Redactor(privacy)
        completion = choice_redactor.message(completion_of(choice))
        withheld = (
            redactor.reason
            or choice_redactor.reason
            or exchange.withheld
            or answer.problem
            or _unreadable_input(request)
        )
        if withheld is None and answer.complete and position in missing:
            withheld = NO_CHOICE
        if withheld is None and "logprobs" in exchange.refused and not choice.logprobs:
            withheld = LOGPROBS_REFUSED
        fields = _tokens(answer, choice, token_ids, sampled_tokens, withheld, sampling)
        finish_reason = choice.finish_reason if answer.complete or choice.finish_reason else ABANDONED
        drafts.append(
            Draft(
                prompt,
                completion,
                {**shared, **fields, "choice": choice.index, "finish_reason": finish_reason},
                redactor.error or choice_redactor.error,
            )
        )
    return drafts


def _tokens(
    answer: ServerAnswer,
    choice: AnswerChoice,
    token_ids: Sequence[int] | None,
    sampled_tokens: int | None,
    withheld: str | None,
    sampling: str | None,
) -> dict[str, Any]:
    logprobs = clean_logprobs(choice.logprobs)
    reason = judge(
        prompt_token_ids=answer.prompt_token_ids,
        token_ids=token_ids,
        logprobs=logprobs if logprobs is not None else choice.logprobs,
        sampled_tokens=sampled_tokens,
        completion_tokens=answer.completion_tokens,
        complete=answer.complete,
        withheld=withheld,
        sampling=sampling,
    )
    fields: dict[str, Any] = {"trainable": reason is None, "untrainable_reason": reason}
    if withheld in ("masked_text", "redaction_failed", "tokens_withheld"):
        return fields  # the ids would spell out what was masked
    return {
        **fields,
        "prompt_token_ids": encode_token_ids(answer.prompt_token_ids) if answer.prompt_token_ids else None,
        "completion_token_ids": encode_token_ids(token_ids) if token_ids else None,
        "logprobs": encode_logprobs(logprobs) if logprobs else None,
    }


def _unreadable_input(request: Mapping[str, Any]) -> str | None:
    """Return why the ids of the prompt are not all that the model saw, or not of the prompt alone."""
    contents = (plain(message).get("content") for message in request.get("messages") or ())
    parts = [part for content in contents if isinstance(content, list) for part in content if isinstance(part, Mapping)]
    if any(part.get("type", "text") not in TEXT_PARTS for part in parts):
        return MEDIA_INPUT
    return ECHO if request.get(ECHO) else None


def policy_version_of(model: str) -> int | None:
    """Return the version out of `name@version`; None where the answer does not say it."""
    match = _VERSIONED.search(model)
    return int(match[1]) if match else None


def message_of(message: Any) -> Message:
    """Return a message of a request: a mapping as the application wrote it, or an object that the client gave it
    before.
    """
    fields = plain(message)
    if not isinstance(fields, Mapping):
        raise TypeError(f"a message is a {type(message).__name__}")
    content, parts = fields.get("content"), None
    if content is not None and not isinstance(content, str):
        content, parts = None, canonical(content)
    if fields.get("refusal"):
        others = fields["content"] if isinstance(fields.get("content"), list) else []
        parts = canonical([*others, {"type": "refusal", "refusal": fields["refusal"]}])
    return Message(
        role=text_of(fields.get("role")) or "",
        content=text_of(content),
        name=text_of(fields.get("name")),
        tool_call_id=text_of(fields.get("tool_call_id")),
        tool_calls=_tool_calls_json(fields.get("tool_calls")),
        parts=text_of(parts),
        reasoning=text_of(fields.get("reasoning_content")) or text_of(fields.get("reasoning")),
    )


def completion_of(choice: AnswerChoice) -> Message:
    """Return the sampled message."""
    refusal = [{"type": "refusal", "refusal": choice.refusal}] if choice.refusal else None
    return Message(
        role=choice.role,
        content=choice.content,
        tool_calls=_tool_calls_json(choice.tool_calls),
        parts=canonical(refusal) if refusal else None,
        reasoning=choice.reasoning,
    )


def _tool_calls_json(calls: Iterable[Any] | None) -> str | None:
    """Return the calls as JSON; without fields that are not set, so that a call sent back is the call received."""
    if not calls:
        return None
    return text_of(
        canonical([{key: value for key, value in plain(call).items() if value is not None} for call in calls])
    )


def tools_json(request: Mapping[str, Any]) -> str | None:
    """Return the tool schemas that a request offers, as JSON."""
    offered = {name: plain(request[name]) for name in TOOLS_FIELDS if isinstance(request.get(name), list | tuple)}
    offered = {name: tools for name, tools in offered.items() if tools}
    if not offered:
        return None
    return text_of(canonical(offered["tools"] if set(offered) == {"tools"} else offered))
