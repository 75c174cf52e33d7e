"""Chat completions: `chat.completions.create`, `parse`, and their streams."""

import copy
from collections.abc import Mapping
from typing import Any

from rollbus.producers import surface
from rollbus.producers.answer import Answer, answer_of
from rollbus.producers.openai_stream import StreamAccumulator
from rollbus.producers.surface import Accumulator, Asked


class ChatSurface:
    """See `Surface`."""

    def observes(self, request: Mapping[str, Any]) -> bool:
        """All are recorded."""
        return True

    def own(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Messages may be an iterator, which can be read only once."""
        return {**request, "messages": list(request.get("messages") or ())} if "messages" in request else dict(request)

    def asked(self, request: Mapping[str, Any]) -> Asked:
        """`logprobs`, vLLM's and SGLang's `return_token_ids`, and `stream_options`."""
        return Asked(request.get("logprobs") is True, surface.asks_ids(request), surface.asks_usage(request))

    def ask(self, request: Mapping[str, Any], *, force: bool) -> dict[str, Any]:
        """Ask for all three."""
        logprobs = {"logprobs": True} if force or not isinstance(request.get("logprobs"), bool) else {}
        return {**logprobs, **surface.extra_body(request), **surface.with_usage(request)}

    def recorded(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """It has the form already."""
        return {**request, "messages": [_copy(each) for each in request.get("messages") or ()]}

    def withheld(self, request: Mapping[str, Any]) -> str | None:
        """Nothing that can be asked for makes an answer useless."""
        return None

    def answer(self, response: Any) -> Answer:
        """Read a chat completion."""
        return answer_of(response)

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


def _copy(message: Any) -> Any:
    """Return a message that the application may no longer change; parts and tool calls are few, so copied whole."""
    if not isinstance(message, dict):
        return message
    return {name: each if isinstance(each, str) else copy.deepcopy(each) for name, each in message.items()}


CHAT = ChatSurface()
