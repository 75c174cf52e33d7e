"""Chat completions: `POST …/chat/completions`, and their streams."""

from collections.abc import Collection, Mapping
from typing import Any

from rollbus.producers.capture import surface
from rollbus.producers.capture.chat_stream import ChunkReader
from rollbus.producers.capture.surface import Wishes
from rollbus.producers.turns.answer import ServerAnswer, answer_of


class ChatSurface:
    """See `Surface`."""

    empty_logprobs = b"null"

    def is_recorded(self, request: Mapping[str, Any]) -> bool:
        """Return True: every chat completion can be recorded."""
        return True

    def read_wishes(self, request: Mapping[str, Any]) -> Wishes:
        """Read `logprobs`, vLLM's and SGLang's `return_token_ids`, and `stream_options`."""
        return Wishes(request.get("logprobs") is True, surface.asks_ids(request), surface.asks_usage(request))

    def add_wishes(self, request: Mapping[str, Any], *, force: bool, refused: Collection[str] = ()) -> dict[str, Any]:
        """Return what to add for log-probs, token ids and usage, and for plain sampling where the request says nothing.

        Without `force`, an application that refuses log-probs gets none.
        """
        added = surface.ids_and_sampling(request, refused)
        asks_logprobs = request.get("logprobs")
        if "logprobs" not in refused and asks_logprobs is not True and (force or not isinstance(asks_logprobs, bool)):
            added["logprobs"] = True
        return added if "usage" in refused else added | surface.with_usage(request)

    def convert_request(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Return a copy: it has the form of a record already."""
        return dict(request)

    def read_response(self, response: Any) -> ServerAnswer:
        """Read a chat completion."""
        return answer_of(response)

    def make_reader(self) -> ChunkReader:
        """Return a reader of a stream's chunks."""
        return ChunkReader()


CHAT = ChatSurface()
