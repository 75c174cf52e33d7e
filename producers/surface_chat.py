"""Chat completions: `chat.completions.create`, `parse`, and their streams."""

import copy
from collections.abc import Collection, Mapping
from typing import Any

from rollbus.producers import surface
from rollbus.producers.answer import ENTRY_BYTES, ID_BYTES, Answer, Unread, answer_of, kept_call, kept_fields
from rollbus.producers.openai_stream import StreamAccumulator
from rollbus.producers.surface import Accumulator, Asked


class ChatSurface:
    """See `Surface`."""

    def observes(self, request: Mapping[str, Any]) -> bool:
        """All are recorded."""
        return True

    def own(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        """Messages may be an iterator, which can be read only once."""
        messages = request.get("messages")
        return request if messages is None or type(messages) is list else {**request, "messages": list(messages)}

    def asked(self, request: Mapping[str, Any]) -> Asked:
        """`logprobs`, vLLM's and SGLang's `return_token_ids`, and `stream_options`."""
        return Asked(request.get("logprobs") is True, surface.asks_ids(request), surface.asks_usage(request))

    def ask(self, request: Mapping[str, Any], *, force: bool, refused: Collection[str] = ()) -> dict[str, Any]:
        """Ask for all three."""
        added = surface.with_ids(request, refused)
        if "logprobs" not in refused and (force or not isinstance(request.get("logprobs"), bool)):
            added["logprobs"] = True
        return {**added, **surface.with_usage(request, refused)} if "stream" in request else added

    def recorded(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """It has the form already; the application may change its messages while the call runs."""
        return {**request, "messages": [_still(each) for each in request.get("messages") or ()]}

    def withheld(self, request: Mapping[str, Any]) -> str | None:
        """Nothing that can be asked for makes an answer useless."""
        return None

    def answer(self, response: Any) -> Answer | Unread:
        """Keep a chat completion's parts; objects that are not the client's are read at once."""
        return (
            _kept(response)
            if isinstance(response, dict) or hasattr(response, "model_fields_set")
            else answer_of(response)
        )

    def accumulator(self) -> Accumulator:
        """Read its chunks."""
        return StreamAccumulator()

    def hide(self, response: Any, asked: Asked) -> None:
        """Log-probs and token ids."""
        if not asked.ids:
            surface.forget(response, "prompt_token_ids")
        for choice in getattr(response, "choices", None) or ():
            if not asked.logprobs and getattr(choice, "logprobs", None) is not None:
                choice.logprobs = None
            if not asked.ids:
                surface.forget(choice, "token_ids")

    def shown(self, chunk: Any, asked: Asked) -> bool:
        """All but the usage that was not asked for."""
        return asked.usage or surface.is_no_usage_chunk(chunk)


def _still(message: Any) -> Any:
    """Return a message as it is now; parts and tool calls are few, so copied whole."""
    if not isinstance(message, dict):
        return message
    still = message.copy()
    for name, each in message.items():
        if each.__class__ is not str:
            still[name] = copy.deepcopy(each)
    return still


def _kept(response: Any) -> Unread:
    fields = kept_fields(response)
    size = ID_BYTES * len(fields.get("prompt_token_ids") or ())
    choices = []
    for choice in fields.get("choices") or ():
        own = kept_fields(choice)
        own["message"] = message = kept_fields(own["message"])
        if message.get("tool_calls"):
            message["tool_calls"] = [kept_call(call) for call in message["tool_calls"]]
        size += ENTRY_BYTES * len(getattr(own.get("logprobs"), "content", None) or ()) + len(
            message.get("content") or ""
        )
        choices.append(own)
    fields["choices"] = choices
    return Unread(answer_of, fields, len(choices) or 1, size)


CHAT = ChatSurface()
