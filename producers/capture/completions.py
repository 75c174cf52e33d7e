"""The older completions: `completions.create` with a prompt of text or token ids, and their streams.

One prompt per request: a list of prompts passes unrecorded. The record's prompt is one user message.
"""

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from rollbus.producers.capture import surface
from rollbus.producers.capture.chat_stream import ChunkReader
from rollbus.producers.capture.surface import Wishes
from rollbus.producers.turns.answer import (
    AnswerChoice,
    ServerAnswer,
    answer_of,
    canonical,
    count_of,
    fields_of,
    ids_of,
    number_of,
    text_of,
)
from rollbus.producers.turns.turn_record import ECHO

TOP_LOGPROBS = 1
"""Here `logprobs` is a number: how many alternatives come in addition to the sampled token's own."""


class CompletionsSurface:
    """See `Surface`."""

    empty_logprobs = b"null"

    def is_recorded(self, request: Mapping[str, Any]) -> bool:
        """Say whether it has one prompt, as text or token ids."""
        prompt = request.get("prompt")
        return isinstance(prompt, str) or bool(ids_of(prompt))

    def read_wishes(self, request: Mapping[str, Any]) -> Wishes:
        """Read the same as for a chat; log-probs are asked for by a number, 0 included."""
        logprobs = count_of(request.get("logprobs")) is not None
        return Wishes(logprobs, surface.asks_ids(request), surface.asks_usage(request))

    def add_wishes(self, request: Mapping[str, Any], *, force: bool, refused: Collection[str] = ()) -> dict[str, Any]:
        """Return what to add for log-probs, token ids and usage; a number that the application gives stays.

        Nothing is added where the prompt comes back too: its log-probs would stand in front of the sampled ones.
        """
        added: dict[str, Any] = {}
        if request.get(ECHO):
            return added
        if "logprobs" not in refused and count_of(request.get("logprobs")) is None:
            added["logprobs"] = TOP_LOGPROBS
        added |= surface.ids_and_sampling(request, refused)
        return added if "usage" in refused else added | surface.with_usage(request)

    def convert_request(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Return the request with its prompt as a message; a prompt of token ids is their JSON."""
        prompt = request.get("prompt")
        content = prompt if isinstance(prompt, str) else canonical(prompt)
        return {**request, "messages": [{"role": "user", "content": content}]}

    def read_response(self, response: Any) -> ServerAnswer:
        """Read a completion."""
        choices = tuple(_choice_of(choice) for choice in getattr(response, "choices", None) or ())
        return replace(answer_of(response), choices=choices)

    def make_reader(self) -> ChunkReader:
        """Return a reader of a stream's chunks, which have the form of whole completions."""
        return _CompletionsReader()


class _CompletionsReader(ChunkReader):
    def _add_choice(self, choice: Any) -> None:
        part = _choice_of(choice)
        draft = self._choice(part.index)
        draft.finish_reason = part.finish_reason or draft.finish_reason
        if part.content is not None:
            draft.content.append(part.content)
        draft.tokens.extend(part.tokens)
        draft.logprobs.extend(part.logprobs)
        draft.add_token_ids(part.token_ids)


def _choice_of(choice: Any) -> AnswerChoice:
    field = fields_of(choice)
    logprobs = fields_of(field("logprobs"))
    return AnswerChoice(
        index=count_of(field("index")) or 0,
        content=text_of(field("text")),
        finish_reason=text_of(field("finish_reason")),
        tokens=tuple(text_of(token) or "" for token in logprobs("tokens") or ()),
        logprobs=tuple(number_of(value) for value in logprobs("token_logprobs") or ()),
        token_ids=ids_of(field("token_ids")),
    )


COMPLETIONS = CompletionsSurface()
