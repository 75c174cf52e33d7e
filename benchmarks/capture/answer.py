"""One answer as a vLLM server sends it, and the prompt it answers: the same bytes for every recorder."""

import json
import random
from typing import Any

TOKENS, PROMPT_TOKENS = 500, 3000
CHUNKS = 300
"""Of a stream, with a token each."""
PROMPT_BYTES = 12_000
MODEL = "agent@7"


def prompt() -> list[dict[str, str]]:
    """Return a conversation of 12 kB: instructions and five turns."""
    text = "The order was paid on the third and has not left the warehouse since. "
    part = (text * (PROMPT_BYTES // 6 // len(text) + 1))[: PROMPT_BYTES // 6]
    roles = ("system", "user", "assistant", "user", "assistant", "user")
    return [{"role": role, "content": part} for role in roles]


def body(tokens: int = TOKENS) -> dict[str, Any]:
    """Return the answer, with the log-prob and the id of every token."""
    chance = random.Random(7)
    words = [f" word{chance.randrange(1000)}" for _ in range(tokens)]
    logprobs = [
        {"token": word, "logprob": -chance.expovariate(2.0), "bytes": list(word.encode()), "top_logprobs": []}
        for word in words
    ]
    choice = {
        "index": 0,
        "finish_reason": "stop",
        "message": {"role": "assistant", "content": "".join(words)},
        "logprobs": {"content": logprobs, "refusal": None},
        "token_ids": [chance.randrange(150_000) for _ in words],
    }
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": MODEL,
        "prompt_token_ids": [chance.randrange(150_000) for _ in range(PROMPT_TOKENS)],
        "choices": [choice],
        "usage": {"prompt_tokens": PROMPT_TOKENS, "completion_tokens": tokens, "total_tokens": PROMPT_TOKENS + tokens},
    }


def encoded() -> bytes:
    """Return the answer's bytes."""
    return json.dumps(body()).encode()


def streamed() -> bytes:
    """Return an answer's bytes as the same server streams it, a token at a time."""
    whole = body(CHUNKS)
    (choice,) = whole.pop("choices")
    head = {**whole, "object": "chat.completion.chunk"}
    usage, prompt_ids = head.pop("usage"), head.pop("prompt_token_ids")
    chunks: list[dict[str, Any]] = [
        {
            **head,
            "choices": [
                {
                    "index": 0,
                    "delta": {"content": entry["token"]},
                    "logprobs": {"content": [entry], "refusal": None},
                    "finish_reason": "stop" if number == CHUNKS - 1 else None,
                    "token_ids": [token_id],
                }
            ],
        }
        for number, (entry, token_id) in enumerate(zip(choice["logprobs"]["content"], choice["token_ids"], strict=True))
    ]
    chunks[0]["prompt_token_ids"] = prompt_ids
    chunks.append({**head, "choices": [], "usage": usage})
    return b"".join(b"data: " + json.dumps(chunk).encode() + b"\n\n" for chunk in chunks) + b"data: [DONE]\n\n"
