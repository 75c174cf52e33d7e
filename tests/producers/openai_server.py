"""A scripted OpenAI-compatible server inside the process, spoken to by the real `openai` client over httpx's mock
transport.
"""

import json
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from typing import Any

import httpx
import openai

Body = dict[str, Any]
Script = Callable[[Body], "httpx.Response | Body | list[Body]"]


def logprobs_of(tokens: Sequence[str], values: Sequence[float]) -> Body:
    """The `logprobs` object of a choice."""
    return {
        "content": [
            {"token": token, "logprob": value, "bytes": None, "top_logprobs": []}
            for token, value in zip(tokens, values, strict=True)
        ],
        "refusal": None,
    }


def completion(
    *, content: str | None = "Hello there", choices: int = 1, model: str = "agent@3", **message: Any
) -> Body:
    """A whole answer of two tokens per choice, as vLLM gives it when asked for token ids."""
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": model,
        "prompt_token_ids": [1, 2, 3],
        "choices": [
            {
                "index": index,
                "finish_reason": "stop",
                "message": {"role": "assistant", "content": content, **message},
                "logprobs": logprobs_of(["Hello", " there"], [-0.5, -0.25]),
                "token_ids": [10 + index, 20],
            }
            for index in range(choices)
        ],
        "usage": {"prompt_tokens": 3, "completion_tokens": 2 * choices, "total_tokens": 3 + 2 * choices},
    }


def chunk(choices: list[Body], **fields: Any) -> Body:
    """One chunk of a stream."""
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": "agent@3",
        "choices": choices,
        **fields,
    }


def streamed() -> list[Body]:
    """The same answer as `completion()`, in chunks as vLLM streams it with usage."""
    first = {"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None, "logprobs": None}
    return [
        chunk([first], prompt_token_ids=[1, 2, 3]),
        *(
            chunk(
                [
                    {
                        "index": 0,
                        "delta": {"content": text},
                        "finish_reason": finish,
                        "logprobs": logprobs_of([text], [value]),
                        "token_ids": [token_id],
                    }
                ]
            )
            for text, value, token_id, finish in (
                ("Hello", -0.5, 10, None),
                (" there", -0.25, 20, "stop"),
            )
        ),
        chunk([], usage={"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}),
    ]


class Server:
    """Answers requests by a script, and remembers them."""

    def __init__(self, script: Script | None = None) -> None:
        """Answer with `completion()` or `streamed()` unless told otherwise."""
        self.script: Script = script or (lambda body: streamed() if body.get("stream") else completion())
        self.requests: list[Body] = []

    def http(self) -> httpx.Client:
        """A connection to this server."""
        return httpx.Client(transport=httpx.MockTransport(self._answer))

    def async_http(self) -> httpx.AsyncClient:
        """An asynchronous connection to this server."""

        async def answer(request: httpx.Request) -> httpx.Response:
            return self._answer(request)

        return httpx.AsyncClient(transport=httpx.MockTransport(answer))

    def client(self, **options: Any) -> openai.OpenAI:
        """A client of this server."""
        return openai.OpenAI(
            base_url="http://server/v1", http_client=self.http(), **{"api_key": "k", "max_retries": 0, **options}
        )

    def async_client(self) -> openai.AsyncOpenAI:
        """An asynchronous client of this server."""
        return openai.AsyncOpenAI(
            api_key="k", base_url="http://server/v1", http_client=self.async_http(), max_retries=0
        )

    def _answer(self, request: httpx.Request) -> httpx.Response:
        return self.answer_body(json.loads(request.content))

    def answer_body(self, body: Body) -> httpx.Response:
        """Answer one request by its JSON."""
        self.requests.append(body)
        answer = self.script(body)
        if isinstance(answer, httpx.Response):
            return answer
        if isinstance(answer, Mapping):
            return httpx.Response(200, content=json.dumps(answer), headers={"content-type": "application/json"})
        return sse(answer)


def sse(chunks: Sequence[Body], *, done: bool = True) -> httpx.Response:
    """A stream of server-sent events."""
    lines = [f"data: {json.dumps(item)}\n\n" for item in chunks] + (["data: [DONE]\n\n"] if done else [])
    pieces = _Pieces([line.encode() for line in lines])
    return httpx.Response(200, headers={"content-type": "text/event-stream"}, stream=pieces)


class _Pieces(httpx.SyncByteStream, httpx.AsyncByteStream):
    """A body that comes event by event."""

    def __init__(self, pieces: Sequence[bytes]) -> None:
        self._pieces = pieces

    def __iter__(self) -> Iterator[bytes]:
        yield from self._pieces

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for piece in self._pieces:
            yield piece
