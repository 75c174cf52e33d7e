"""An answer as server-sent events: tokens as they come, text and tool calls as soon as they are final.

Text deltas never show half a character, a stop string, or the beginning of a tool call; joined they are the text of
the whole answer.
"""

import json
from collections.abc import AsyncIterator
from typing import Any

from rollbus.trainer.art_server.endpoint.choices import Choices, Sampled
from rollbus.trainer.art_server.endpoint.openai_answers import TextOffsets, call_id, finish_reason, logprobs_of
from rollbus.trainer.art_server.endpoint.openai_api import ChatRequest, CompletionRequest, RequestError
from rollbus.trainer.art_server.endpoint.tokenizer import REPLACEMENT
from rollbus.trainer.art_server.endpoint.tool_calls import Piece, ToolCall, ToolCallReader
from rollbus.trainer.art_server.sampler.growing_text import GrowingText
from rollbus.trainer.art_server.sampler.requests import Generation

DONE = "data: [DONE]\n\n"


def event(body: dict[str, Any]) -> str:
    return f"data: {json.dumps(body)}\n\n"


class AnswerStream:
    """The events of one request. After them `sampled_tokens` is known."""

    def __init__(
        self, request: ChatRequest | CompletionRequest, choices: Choices, envelope: dict[str, Any], tokenizer: Any
    ) -> None:
        self._request, self._choices, self._envelope = request, choices, envelope
        self._chat = isinstance(request, ChatRequest)
        self._streams = [_ChoiceStream(request, tokenizer, choices.id, index) for index in range(choices.count)]
        self.sampled_tokens = 0

    async def events(self) -> AsyncIterator[str]:
        """A first one per choice, one per token, a last one with the finish reason. A failure is an event too."""
        for index in range(self._choices.count):
            yield self._first(index)
        open_choices = self._choices.count
        try:
            while open_choices:
                index, sampled = await self._choices.tokens.get()
                if sampled is not None:
                    for changed in self._streams[index].add(sampled):
                        yield self._event(index, changed)
                    continue
                open_choices -= 1
                answer = await self._choices.answer(index)
                self.sampled_tokens += len(answer.token_ids)
                for changed in self._streams[index].end(answer):
                    yield self._event(index, changed)
        except RequestError as error:
            yield event(error.body())
        finally:
            self._choices.cancel()

    def _first(self, index: int) -> str:
        fields: dict[str, Any] = {"delta": {"role": "assistant", "content": ""}} if self._chat else {"text": ""}
        if not (self._request.return_token_ids or self._request.wants_logprobs):
            return self._event(index, fields)
        prompt = list(self._choices.prompt_of(index))
        if self._chat:
            return self._event(index, fields, prompt_token_ids=prompt)
        return self._event(index, {**fields, "prompt_token_ids": prompt})

    def _event(self, index: int, changed: dict[str, Any], **more: Any) -> str:
        choice = {"index": index, "finish_reason": None, **changed}
        return event({**self._envelope, "choices": [choice], **more})


class _ChoiceStream:
    """What each further token adds to one choice."""

    def __init__(self, request: ChatRequest | CompletionRequest, tokenizer: Any, answer_id: str, index: int) -> None:
        self._request, self._tokenizer = request, tokenizer
        self._answer_id, self._index = answer_id, index
        self._text, self._offsets = GrowingText(tokenizer), TextOffsets()
        self._sent = ""
        self._held_back = max((len(stop) for stop in request.stop), default=1) - 1
        offered = isinstance(request, ChatRequest) and request.offered_tools
        self._reader = ToolCallReader() if offered else None
        self._calls = 0

    def add(self, sampled: Sampled) -> list[dict[str, Any]]:
        """One or more changes; the first carries the token."""
        self._text.add(sampled.token_id)
        first, *more = self._changes(self._settle_text()) or [self._change("")]
        if self._request.wants_logprobs:
            generation = Generation((sampled.token_id,), (sampled.logprob,), "", "stop", 0, (sampled.alternatives,))
            first["logprobs"] = logprobs_of(self._request, generation, self._tokenizer, self._offsets)
        if self._request.wants_logprobs or self._request.return_token_ids:
            first["token_ids"] = [sampled.token_id]
        return [first, *more]

    def end(self, answer: Generation) -> list[dict[str, Any]]:
        """Return what was held back, and the finish reason."""
        changes = self._changes(answer.text[len(self._sent) :], last=True)
        last: dict[str, Any] = {"delta": {}} if isinstance(self._request, ChatRequest) else {"text": ""}
        return [*changes, {**last, "finish_reason": finish_reason(answer, called=self._calls > 0)}]

    def _settle_text(self) -> str:
        """Text that no further token can take back."""
        text = self._text.text.rstrip(REPLACEMENT)  # half a character does not count as held back
        ready = text[: max(len(text) - self._held_back, 0)]
        if ready.endswith(REPLACEMENT) or any(stop in text for stop in self._request.stop):
            return ""
        delta = ready[len(self._sent) :]
        self._sent += delta
        return delta

    def _changes(self, text: str, *, last: bool = False) -> list[dict[str, Any]]:
        if self._reader is None:
            return [self._change(text)] if text else []
        pieces = [*self._reader.add(text), *(self._reader.end() if last else ())]
        return [self._change(piece) for piece in pieces]

    def _change(self, piece: Piece) -> dict[str, Any]:
        if not isinstance(piece, ToolCall):
            return {"delta": {"content": piece}} if isinstance(self._request, ChatRequest) else {"text": piece}
        number, self._calls = self._calls, self._calls + 1
        call = piece.to_openai(call_id(self._answer_id, self._index, number))
        return {"delta": {"tool_calls": [{"index": number, **call}]}}
