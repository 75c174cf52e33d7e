#!/usr/bin/env bash
# TRL 1.16.0: four of the chat templates that it ships encode the arguments of a tool call twice if they are JSON text, as in OpenAI's form.
#
# Expected: OpenAI's form of a tool call, `"arguments": "{\"order\": 7}"`, is what servers and data sets hold; a template prints the object once, or refuses
# the text.
# What happens: the templates of Qwen2.5, Llama 3.1, Llama 3.2 and gpt-oss print a JSON text of the text: the model learns to answer
# "arguments": "{\"order\": 7}", which no parser of tool calls reads as an object. Qwen3's prints it once. With objects all print it once.
# Nothing warns: training runs, and the loss falls.
# Whom it matters to: whoever fine-tunes on recorded tool calls with `messages` as the API returned them.
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check transformers==5.24.0 jinja2
"$folder/venv/bin/pip" install -q --disable-pip-version-check --no-deps trl==1.16.0 # only its templates, so without torch
cat >"$folder/try.py" <<'PY'
import importlib.metadata, importlib.util, sys
from pathlib import Path
from transformers.utils.chat_template_utils import render_jinja_template

templates = Path(importlib.util.find_spec("trl").origin).parent / "chat_templates"
tools = [{"type": "function", "function": {"name": "refund", "description": "Pay back.", "parameters": {"type": "object", "properties": {}}}}]

def render(name, arguments):
    call = {"id": "call00001", "type": "function", "function": {"name": "refund", "arguments": arguments}}
    messages = [{"role": "user", "content": "Pay back 7."}, {"role": "assistant", "content": "", "tool_calls": [call]}]
    text = (templates / f"{name}.jinja").read_text()
    return render_jinja_template([messages], chat_template=text, tools=tools, bos_token="", eos_token="")[0][0]

print("TRL", importlib.metadata.version("trl"))
twice = {}
for name in ("qwen2_5", "llama3_1", "llama3_2", "gptoss", "qwen3"):
    rendered = render(name, '{"order": 7}')
    twice[name] = '"{\\"order\\": 7}"' in rendered
    print(f"{name}: {rendered[rendered.index('order') - 25 :][:60]!r}")
    assert '{"order": 7}' in render(name, {"order": 7}), "objects are printed once"
sys.exit(twice != {"qwen2_5": True, "llama3_1": True, "llama3_2": True, "gptoss": True, "qwen3": False})
PY
"$folder/venv/bin/python" "$folder/try.py" || { echo "the behaviour has changed"; exit 1; }
