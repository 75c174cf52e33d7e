#!/usr/bin/env bash
# nvidia-nat-semantic-kernel 1.9.0 with semantic-kernel 1.45.0: once the toolkit's profiling callback is on, a streamed answer is an error.
#
# Expected: the callback measures calls and changes no answer, so a streamed chat gives its chunks with it as without it.
# What happens: the callback puts an async function in the place of the async generator that streams, so Semantic Kernel iterates a coroutine
# and raises. Answers that are not streamed are as before.
# Whom it matters to: who registers a toolkit function with framework_wrappers=[SEMANTIC_KERNEL] and streams with OpenAI's connector.
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv --without-pip "$folder/venv"
"${PYTHON:-python3}" -m pip install -q --disable-pip-version-check --no-compile --no-deps --target "$folder/uv" uv==0.13.8
install() { UV_CACHE_DIR="$folder/cache" "$folder/uv/bin/uv" pip install -q --python "$folder/venv/bin/python" "$@"; }
install --no-deps nvidia-nat-core==1.9.0 nvidia-nat-semantic-kernel==1.9.0
install semantic-kernel==1.45.0
cat >"$folder/try.py" <<'PY'
import asyncio, json, sys
from importlib.metadata import version
from types import SimpleNamespace
import httpx
from openai import AsyncOpenAI
from semantic_kernel.connectors.ai.open_ai import OpenAIChatCompletion, OpenAIChatPromptExecutionSettings
from semantic_kernel.contents import ChatHistory
from nat.plugins.semantic_kernel.callback_handler import SemanticKernelProfilerHandler

def answer(request):
    head = {"id": "c", "created": 1, "model": "m"}
    if not json.loads(request.content).get("stream"):
        choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "There are 7."}}
        usage = {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7}
        return httpx.Response(200, json={**head, "object": "chat.completion", "choices": [choice], "usage": usage})
    deltas = [{"role": "assistant", "content": "There "}, {"content": "are 7."}]
    chunks = [{"index": 0, "delta": delta, "finish_reason": None} for delta in deltas] + [{"index": 0, "delta": {}, "finish_reason": "stop"}]
    lines = [json.dumps({**head, "object": "chat.completion.chunk", "choices": [chunk]}) for chunk in chunks] + ["[DONE]"]
    return httpx.Response(200, headers={"content-type": "text/event-stream"}, text="".join(f"data: {line}\n\n" for line in lines))

client = AsyncOpenAI(api_key="k", base_url="http://model/v1", http_client=httpx.AsyncClient(transport=httpx.MockTransport(answer)))
service = OpenAIChatCompletion(ai_model_id="m", async_client=client)

async def ask(streamed):
    history = ChatHistory()
    history.add_user_message("How many?")
    settings = OpenAIChatPromptExecutionSettings()
    try:
        if not streamed:
            return str(await service.get_chat_message_content(history, settings))
        return "".join([str(chunk) async for chunk in service.get_streaming_chat_message_content(history, settings)])
    except Exception as error:
        return f"{type(error).__name__}: {error}"

async def main():
    before = [await ask(False), await ask(True)]
    SemanticKernelProfilerHandler({"llm": SimpleNamespace(provider_type="openai")}).instrument()
    return before, [await ask(False), await ask(True)]

before, after = asyncio.run(main())
print(f"nvidia-nat-semantic-kernel {version('nvidia-nat-semantic-kernel')}, semantic-kernel {version('semantic-kernel')}")
print(f"without the callback: {before}")
print(f"with it:              {after}")
text = "There are 7."
sys.exit(before != [text, text] or after[0] != text or "coroutine" not in after[1])
PY
"$folder/venv/bin/python" -W ignore "$folder/try.py" || { echo "the behaviour has changed"; exit 1; }
