#!/usr/bin/env bash
# litellm 1.110.2: a streamed answer that is put together again keeps its token ids and loses its log-probs, and its tokens are counted anew.
#
# Expected: `stream_chunk_builder`, which makes the whole answer that callbacks and loggers get of a stream, gives what the same request would have given
# without a stream: content, log-probs, and the number of tokens that were sampled.
# What happens: fields that it does not know, such as vLLM's `token_ids`, are joined in their order; `logprobs`, which it does know, are gone. Where the
# server sends no usage, tokens are counted by a tokenizer of litellm's choice: 2 for an answer of three token ids, without a word.
# Whom it matters to: whoever trains on, or computes costs and perplexities of, what a callback records of streams.
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv --without-pip "$folder/venv"
"${PYTHON:-python3}" -m pip --python "$folder/venv/bin/python" install -q --no-compile --disable-pip-version-check litellm==1.110.2
cat >"$folder/try.py" <<'PY'
import sys
from importlib.metadata import version

import litellm
from litellm.types.utils import ModelResponseStream

print("litellm", version("litellm"))
shared = {"id": "answer", "created": 1, "model": "agent", "object": "chat.completion.chunk"}


def chunk(token_id, text, logprob):
    entry = {"token": text, "logprob": logprob, "bytes": list(text.encode()), "top_logprobs": []}
    choice = {"index": 0, "delta": {"role": "assistant", "content": text}, "finish_reason": None}
    return ModelResponseStream(**shared, choices=[{**choice, "logprobs": {"content": [entry]}, "token_ids": [token_id]}])


chunks = [chunk(11, "Hel", -0.1), chunk(12, "lo", -0.2), chunk(13, "!", -0.3)]
chunks.append(ModelResponseStream(**shared, choices=[{"index": 0, "delta": {}, "finish_reason": "stop"}]))
given = [choice.logprobs is not None for part in chunks[:3] for choice in part.choices]
answer = litellm.stream_chunk_builder(chunks, messages=[{"role": "user", "content": "Hi"}])
choice = answer.choices[0].model_dump()
print("chunks with log-probs:", given)
print("content:", choice["message"]["content"], "token ids:", choice.get("token_ids"), "log-probs:", choice.get("logprobs"))
print("completion tokens:", answer.usage.completion_tokens)
sys.exit(
    given != [True] * 3
    or (choice["message"]["content"], choice.get("token_ids")) != ("Hello!", [11, 12, 13])
    or choice.get("logprobs") is not None
    or answer.usage.completion_tokens != 2
)
PY
"$folder/venv/bin/python" "$folder/try.py" 2>"$folder/errors" || { cat "$folder/errors"; echo "the behaviour has changed"; exit 1; }
