"""The older completions: `completions.create` with a prompt of text or token ids, and their streams.

One prompt per request: a list of prompts passes unrecorded. The record's prompt is one user message.
"""

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from rollbus.producers import surface
from rollbus.producers.answer import Answer, Choice, answer_of, canonical, count_of, ids_of, number_of, text_of
from rollbus.producers.surface import Accumulator, Asked
from rollbus.producers.turn_record import ECHO

TOP_LOGPROBS = 1
"""Here `logprobs` is a number: how many alternatives come beside the sampled token's own."""


class CompletionsSurface:
    """See `Surface`."""

    def own(self, request: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """One prompt, as text or token ids; nothing can be read only once."""
        prompt = request.get("prompt")
        return request if isinstance(prompt, str) or ids_of(prompt) else None

    def asked(self, request: Mapping[str, Any]) -> Asked:
        """Log-probs are asked for by a number."""
        logprobs = count_of(request.get("logprobs")) is not None
        return Asked(logprobs, surface.asks_ids(request), surface.asks_usage(request))

    def ask(self, request: Mapping[str, Any], *, force: bool, refused: Collection[str] = ()) -> dict[str, Any]:
        """Ask for all three, unless the prompt comes back too; a number that the application gives stays."""
        added: dict[str, Any] = {}
        if request.get(ECHO):
            return added
        if "logprobs" not in refused and count_of(request.get("logprobs")) is None:
            added["logprobs"] = TOP_LOGPROBS
        if "token_ids" not in refused:
            added |= surface.with_ids(request)
        return added if "usage" in refused else added | surface.with_usage(request)

    def recorded(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """The prompt becomes a message; of token ids their JSON."""
        prompt = request.get("prompt")
        content = prompt if isinstance(prompt, str) else canonical(prompt)
        return {**request, "messages": [{"role": "user", "content": content}]}

    def answer(self, response: Any) -> Answer:
        """Read a completion."""
        choices = tuple(_choice_of(choice) for choice in getattr(response, "choices", None) or ())
        return replace(answer_of(response), choices=choices)

    def accumulator(self) -> Accumulator:
        """Read its chunks, which have the form of whole completions."""
        return _CompletionsAccumulator(self)

    def hide(self, response: Any, asked: Asked) -> None:
        """Log-probs and token ids."""
        for choice in getattr(response, "choices", None) or ():
            if not asked.logprobs and getattr(choice, "logprobs", None) is not None:
                choice.logprobs = None
            if not asked.ids:
                surface.forget(choice, "token_ids")
                surface.forget(choice, "prompt_token_ids")

    def shown(self, chunk: Any, asked: Asked) -> bool:
        """All but the usage that was not asked for."""
        return asked.usage or surface.is_no_usage_chunk(chunk)


class _CompletionsAccumulator:
    def __init__(self, reader: CompletionsSurface) -> None:
        self._reader, self._chunks = reader, list[Answer]()

    def add(self, chunk: Any) -> None:
        self._chunks.append(self._reader.answer(chunk))

    def answer(self, *, complete: bool = True) -> Answer:
        """Return what has come so far; complete only where each choice said why it ended."""
        whole: dict[int, Choice] = {}
        for choice in (choice for chunk in self._chunks for choice in chunk.choices):
            known = whole.get(choice.index)
            whole[choice.index] = choice if known is None else _joined(known, choice)
        return Answer(
            model=_last(chunk.model for chunk in self._chunks) or "",
            response_id=_last(chunk.response_id for chunk in self._chunks),
            prompt_token_ids=_last(chunk.prompt_token_ids for chunk in self._chunks),
            prompt_tokens=_last(chunk.prompt_tokens for chunk in self._chunks),
            completion_tokens=_last(chunk.completion_tokens for chunk in self._chunks),
            choices=tuple(choice for _, choice in sorted(whole.items())),
            complete=complete and bool(whole) and all(choice.finish_reason for choice in whole.values()),
        )


def _choice_of(choice: Any) -> Choice:
    logprobs = getattr(choice, "logprobs", None)
    return Choice(
        index=count_of(getattr(choice, "index", None)) or 0,
        content=text_of(getattr(choice, "text", None)),
        finish_reason=text_of(getattr(choice, "finish_reason", None)),
        tokens=tuple(text_of(token) or "" for token in getattr(logprobs, "tokens", None) or ()),
        logprobs=tuple(number_of(value) for value in getattr(logprobs, "token_logprobs", None) or ()),
        token_ids=ids_of(getattr(choice, "token_ids", None)),
    )


def _joined(known: Choice, more: Choice) -> Choice:
    ids = [*(known.token_ids or ()), *(more.token_ids or ())]
    return replace(
        known,
        content=(known.content or "") + (more.content or ""),
        finish_reason=more.finish_reason or known.finish_reason,
        tokens=(*known.tokens, *more.tokens),
        logprobs=(*known.logprobs, *more.logprobs),
        token_ids=tuple(ids) or None,
    )


def _last(values: Any) -> Any:
    found = None
    for value in values:
        found = found if value is None or value == "" else value
    return found


COMPLETIONS = CompletionsSurface()
