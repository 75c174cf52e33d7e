"""Chat completions: `chat.completions.create`, `parse`, and their streams."""

import copy
from collections.abc import Collection, Mapping
from typing import Any

from rollbus.producers.capture import surface
from rollbus.producers.capture.chat_stream import StreamAccumulator
from rollbus.producers.capture.surface import Accumulator, Asked
from rollbus.producers.turns.answer import (
    ENTRY_BYTES,
    ID_BYTES,
    ServerAnswer,
    Unread,
    answer_of,
    kept_call,
    kept_fields,
)


class ChatSurface:
    """See `Surface`."""

    def own(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        """Messages and tools may be iterators, which can be read only once."""
        if "tools" in request:
            request = surface.own_tools(request)
        messages = request.get("messages")
        return request if messages is None or type(messages) is list else {**request, "messages": list(messages)}

    def asked(self, request: Mapping[str, Any]) -> Asked:
        """`logprobs`, vLLM's and SGLang's `return_token_ids`, and `stream_options`."""
        ids, usage = "extra_body" in request, "stream_options" in request
        return Asked(
            request.get("logprobs") is True,
            ids and surface.asks_ids(request),
            usage and surface.asks_usage(request),
        )

    def ask(self, request: Mapping[str, Any], *, force: bool, refused: Collection[str] = ()) -> dict[str, Any]:
        """Ask for all three, and for plain sampling where the request leaves it open."""
        added: dict[str, Any] = {}
        if "logprobs" not in refused and (force or not isinstance(request.get("logprobs"), bool)):
            added["logprobs"] = True
        added |= surface.with_ids_and_sampling(request, refused)
        if "stream" in request and "usage" not in refused:
            added |= surface.with_usage(request)
        return added

    def recorded(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """It has the form already; the application may change its messages while the call runs."""
        still = []
        for message in request.get("messages") or ():
            if isinstance(message, dict):
                message = message.copy()
                for name, value in message.items():
                    if value.__class__ is not str:  # parts and tool calls, which are few
                        message[name] = copy.deepcopy(value)
            still.append(message)
        return {**request, "messages": still}

    def answer(self, response: Any) -> ServerAnswer | Unread:
        """Keep a chat completion's parts; objects that are not the client's are read at once."""
        try:
            return _kept(response)
        except (AttributeError, TypeError, KeyError):
            return answer_of(response)

    def accumulator(self) -> Accumulator:
        """Read its chunks."""
        return StreamAccumulator()

    def hide(self, response: Any, asked: Asked) -> None:
        """Log-probs and token ids."""
        choices = (response.get("choices") if type(response) is dict else getattr(response, "choices", None)) or ()
        if not asked.logprobs:
            for choice in choices:
                surface.empty(choice, "logprobs")
        if not asked.ids:
            surface.forget(response, "prompt_token_ids")
            for choice in choices:
                surface.forget(choice, "token_ids")
                surface.forget(choice, "prompt_token_ids")  # SGLang has them here

    def shown(self, chunk: Any, asked: Asked) -> bool:
        """All but the usage that was not asked for."""
        self.hide(chunk, asked)
        return asked.usage or surface.is_no_usage_chunk(chunk)


def _kept(response: Any) -> Unread:
    fields = kept_fields(response)
    size, choices = ID_BYTES * len(fields.get("prompt_token_ids") or ()), []
    for choice in fields["choices"] or ():
        own = kept_fields(choice)
        own["message"] = message = kept_fields(own["message"])
        if message.get("tool_calls"):
            message["tool_calls"] = [kept_call(call) for call in message["tool_calls"]]
        if (logprobs := own.get("logprobs")) is not None:
            size += ENTRY_BYTES * len(getattr(logprobs, "content", None) or ())
        choices.append(own)
    fields["choices"] = choices
    if fields.get("usage") is not None:
        fields["usage"] = kept_fields(fields["usage"])
    return Unread(answer_of, fields, len(choices) or 1, size)


CHAT = ChatSurface()
