"""Answers in the forms that servers give them, whole, streamed, and with streams cut after every chunk.

The forms are those of:
vLLM at commit 002032ee (`vllm/entrypoints/openai/chat_completion/protocol.py`: `token_ids` of a choice,
`prompt_token_ids` of the answer and of a stream's first chunk, no `tool_calls` where there are none);
SGLang at commit 004c82e0 (`python/sglang/srt/entrypoints/openai/protocol.py` and `serving_chat.py`: both kinds of ids
in a choice, and a refusal of `return_token_ids` in chat streams), and as it was without that option: no ids;
llama.cpp (`probs_vector_to_json` of `tools/server/server-task.cpp`: every log-prob has its token's `id`; ids of the
prompt do not come);
OpenAI (the types of openai-python 2.54).
"""

from typing import Any

import httpx
import pytest

from rollbus.producers import MemorySink, Recorder
from tests.producers.openai_server import Body, Server, sse
from tests.producers.recorded_events import turns

HELLO: Any = [{"role": "user", "content": "hello"}]
USAGE = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
WORDS = (("Hello", 10, -0.5), (" there", 20, -0.25))
SERVERS = {
    "vllm": None,
    "vllm, tokens as ids": "no_prompt_token_ids",
    "sglang": None,
    "sglang, older": "no_token_ids",
    "llama.cpp": "no_prompt_token_ids",
    "openai": "no_token_ids",
}
"""Whether a turn can be trained on, else why not."""
STREAMING_SERVERS = SERVERS | {"sglang": "no_token_ids"}
IDS = {"token_ids", "prompt_token_ids"}
WITH_IDS = ("vllm", "vllm, tokens as ids", "sglang", "llama.cpp")


def entry(server: str, word: str, token_id: int, logprob: float) -> Body:
    """One token's log-prob."""
    fields: Body = {"token": word, "bytes": list(word.encode()), "logprob": logprob, "top_logprobs": []}
    if server == "vllm, tokens as ids":
        return {**fields, "token": f"token_id:{token_id}"}
    if server == "llama.cpp":
        sampled_token = {"id": token_id, "token": word, "bytes": fields["bytes"], "logprob": logprob}
        return {**sampled_token, "top_logprobs": [sampled_token]}
    return fields


def envelope(server: str, kind: str) -> Body:
    """What is around the choices."""
    fields: Body = {"id": "chatcmpl-1", "object": kind, "created": 1, "model": "agent@3"}
    fields_by_server: dict[str, Body] = {
        "sglang": {"metadata": {"weight_version": "default"}},
        "llama.cpp": {"system_fingerprint": "b6000", "timings": {"prompt_n": 3, "predicted_n": 2}},
        "openai": {"service_tier": "default", "system_fingerprint": "fp_1"},
    }
    if server.startswith("vllm") and kind == "chat.completion":
        return {**fields, "service_tier": None, "system_fingerprint": None, "prompt_text": None, "metrics": None}
    return {**fields, **fields_by_server.get(server.split(" 0")[0], {})}


def ending(server: str) -> Body:
    """What a choice carries in addition to its finish reason."""
    fields_by_server: dict[str, Body] = {"sglang": {"matched_stop": 151645}, "llama.cpp": {}, "openai": {}}
    return fields_by_server.get(server.split(" 0")[0], {"stop_reason": None})


def whole(server: str) -> Body:
    """The answer in one piece."""
    message: Body = {"role": "assistant", "content": "Hello there"}
    if server.startswith("sglang"):
        message |= {"reasoning_content": None, "tool_calls": None}
    elif server.startswith("vllm"):
        message |= {"refusal": None, "annotations": None, "audio": None, "function_call": None, "reasoning": None}
    elif server == "openai":
        message |= {"refusal": None, "annotations": []}
    choice = {"index": 0, "message": message, "finish_reason": "stop", **ending(server)}
    choice["logprobs"] = {"content": [entry(server, *word) for word in WORDS]}
    answer = {**envelope(server, "chat.completion"), "choices": [choice], "usage": USAGE}
    if server == "vllm":
        choice |= {"token_ids": [10, 20], "routed_experts": None}
        answer |= {"prompt_token_ids": [1, 2, 3], "prompt_logprobs": None, "kv_transfer_params": None}
    if server == "sglang":
        choice |= {"token_ids": [10, 20], "prompt_token_ids": [1, 2, 3]}
    return answer


def chunks(server: str) -> list[Body]:
    """The answer in pieces: the role, a piece per token, the end, and what was used."""
    around = envelope(server, "chat.completion.chunk")
    if server == "openai":
        around |= {"usage": None, "obfuscation": "x7"}
    first = {"role": "assistant", "content": None if server == "llama.cpp" else ""}
    chunks_so_far = [around | {"choices": [{"index": 0, "delta": first, "logprobs": None, "finish_reason": None}]}]
    if server == "vllm":
        chunks_so_far[0] |= {"prompt_token_ids": [1, 2, 3]}
    for word in WORDS:
        choice = {"index": 0, "delta": {"content": word[0]}, "finish_reason": None}
        choice["logprobs"] = {"content": [entry(server, *word)]}
        if server == "vllm":
            choice["token_ids"] = [word[1]]
        chunks_so_far.append(around | {"choices": [choice]})
    last = {"index": 0, "delta": {}, "logprobs": None, "finish_reason": "stop", **ending(server)}
    return [*chunks_so_far, around | {"choices": [last]}, around | {"choices": [], "usage": USAGE}]


def script_of(server: str) -> Any:
    """What the server does with a request."""

    def script(request: Body) -> Any:
        if not request.get("stream"):
            return whole(server)
        if server == "sglang" and request.get("return_token_ids"):
            message = "return_token_ids is not supported with streaming on /v1/chat/completions."
            return httpx.Response(400, json={"object": "error", "message": message, "code": 400})
        return chunks(server)

    return script


def turn_of(recorder: Recorder, sink: MemorySink, server: Server, *, stream: bool) -> Any:
    """Call once, look for what the application did not ask for, and return the turn."""
    client = recorder.wrap(server.client())
    with recorder.episode(task="t"):
        answer: Any = client.chat.completions.create(model="agent", messages=HELLO, stream=stream)
        for seen in answer if stream else [answer]:
            assert all(choice.logprobs is None for choice in seen.choices)
            assert not IDS & {*seen.to_dict(), *(name for choice in seen.choices for name in choice.to_dict())}
    (turn,) = turns(recorder, sink)
    return turn


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("name", SERVERS)
def test_a_servers_own_form_is_read_and_the_application_sees_no_ids(
    recorder: Recorder, sink: MemorySink, name: str, stream: bool
) -> None:
    turn = turn_of(recorder, sink, Server(script_of(name)), stream=stream)
    assert turn.untrainable_reason == (STREAMING_SERVERS if stream else SERVERS)[name]
    assert turn.completion.content == "Hello there"
    assert (turn.finish_reason, turn.completion_tokens, turn.policy_version) == ("stop", 2, 3)
    assert memoryview(turn.logprobs).cast("f").tolist() == [-0.5, -0.25]
    ids = None if turn.completion_token_ids is None else memoryview(turn.completion_token_ids).cast("i").tolist()
    assert ids == ([10, 20] if name in WITH_IDS and not (stream and name == "sglang") else None)


@pytest.mark.parametrize("cut", range(5))
@pytest.mark.parametrize("name", SERVERS)
def test_a_stream_that_its_server_breaks_off_is_not_a_whole_turn(
    recorder: Recorder, sink: MemorySink, name: str, cut: int
) -> None:
    def script(request: Body) -> httpx.Response:
        return sse(chunks(name)[:cut], done=False)

    turn = turn_of(recorder, sink, Server(script), stream=True)
    assert not turn.trainable
    if cut < 4:
        assert turn.finish_reason == "abandoned"
        assert turn.untrainable_reason == "truncated_stream"
