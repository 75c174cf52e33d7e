"""OpenAI's answers: choices, log-probs and usage out of what was sampled.

Pure: no server, no threads. Beyond OpenAI's fields an answer carries the exact token ids, and `rollbus`: how it was
made.
"""

import codecs
from typing import Any

from rollbus.trainer.art_server.endpoint.openai_api import ChatRequest, CompletionRequest
from rollbus.trainer.art_server.endpoint.tokenizer import token_bytes
from rollbus.trainer.art_server.endpoint.tool_calls import ToolCall, read_tool_calls
from rollbus.trainer.art_server.sampler.requests import Generation
from rollbus.trainer.backends.model_settings import LogprobsMode


def make_choice(
    request: ChatRequest | CompletionRequest, index: int, answer: Generation, tokenizer: Any, *, answer_id: str
) -> dict[str, Any]:
    """One choice; if tools were offered, calls in the text become `tool_calls`."""
    if request.scores_prompt and isinstance(request, CompletionRequest):
        return _scored_choice(index, answer)
    choice: dict[str, Any] = {"index": index, "finish_reason": answer.finish_reason, "logprobs": None}
    if isinstance(request, CompletionRequest):
        choice["text"] = answer.text
    else:
        message: dict[str, Any] = {"role": "assistant", "content": answer.text}
        calls: list[ToolCall] = []
        if request.offered_tools:
            message["content"], calls = read_tool_calls(answer.text)
        if calls:
            message["tool_calls"] = [
                call.to_openai(call_id(answer_id, index, number)) for number, call in enumerate(calls)
            ]
        choice |= {"message": message, "finish_reason": finish_reason(answer, called=bool(calls)), "stop_reason": None}
    if request.wants_logprobs:
        choice["logprobs"] = logprobs_of(request, answer, tokenizer, TextOffsets())
    if request.return_token_ids or request.wants_logprobs:
        choice["token_ids"] = list(answer.token_ids)
    return choice


def _scored_choice(index: int, answer: Generation) -> dict[str, Any]:
    """A prompt that was scored: nothing was sampled, and its first token has no log-prob."""
    logprobs = {"tokens": [], "token_logprobs": [None, *answer.prompt_logprobs], "top_logprobs": [], "text_offset": []}
    return {"index": index, "finish_reason": "length", "logprobs": logprobs, "text": "", "token_ids": []}


def call_id(answer_id: str, choice: int, number: int) -> str:
    """Return the id of a tool call, the same whether the answer is streamed or not."""
    return f"call_{answer_id.rpartition('-')[2][:20]}_{choice}_{number}"


def finish_reason(answer: Generation, *, called: bool) -> str:
    return "tool_calls" if called and answer.finish_reason == "stop" else answer.finish_reason


class TextOffsets:
    """Where each token's text begins in its answer, in characters; tokens of one character begin at one place."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._length = 0

    def next(self, token: list[int]) -> int:
        """Return where it begins; takes the bytes of every token once, in their order."""
        began, self._length = self._length, self._length + len(self._decoder.decode(bytes(token)))
        return began


def logprobs_of(
    request: ChatRequest | CompletionRequest, answer: Generation, tokenizer: Any, offsets: TextOffsets
) -> dict[str, Any]:
    """In the shape of the request's kind; `offsets` have seen the tokens before, where an answer comes in parts."""
    entries = token_logprobs(request, answer, tokenizer)
    if isinstance(request, ChatRequest):
        return {"content": entries, "refusal": None}
    return {
        "tokens": [entry["token"] for entry in entries],
        "token_logprobs": [entry["logprob"] for entry in entries],
        "top_logprobs": [
            {alternative["token"]: alternative["logprob"] for alternative in entry["top_logprobs"]} for entry in entries
        ],
        "text_offset": [offsets.next(entry["bytes"]) for entry in entries],
    }


def token_logprobs(
    request: ChatRequest | CompletionRequest, answer: Generation, tokenizer: Any
) -> list[dict[str, Any]]:
    top = answer.top_logprobs or ((),) * len(answer.token_ids)
    as_ids = request.return_tokens_as_token_ids
    return [
        {
            **_describe_token(token_id, logprob, tokenizer, as_ids=as_ids),
            "top_logprobs": [
                _describe_token(top_token_id, value, tokenizer, as_ids=as_ids) for top_token_id, value in alternatives
            ],
        }
        for token_id, logprob, alternatives in zip(answer.token_ids, answer.logprobs, top, strict=True)
    ]


def describe_origin(model: str, *, seed: int, version: int, logprobs_mode: LogprobsMode) -> dict[str, Any]:
    """Return how the answer was made, for the recorder."""
    return {"model": model, "policy_version": version, "logprobs_mode": logprobs_mode, "seed": seed}


def usage(prompt_tokens: int, completion_tokens: int) -> dict[str, int]:
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
    }


def _describe_token(token_id: int, logprob: float, tokenizer: Any, *, as_ids: bool) -> dict[str, Any]:
    text: str = tokenizer.decode([token_id])
    return {
        "token": f"token_id:{token_id}" if as_ids else text,
        "logprob": logprob,
        "bytes": list(token_bytes(tokenizer, token_id, text)),
    }
