#!/usr/bin/env bash
# opentelemetry-instrumentation-openai-v2 2.4b0: installed as documented, beside openai 3.57.0, it cannot be imported.
#
# Expected: `pip install openai opentelemetry-instrumentation-openai-v2` brings all that `OpenAIInstrumentor` needs.
# What happens: twice a module is missing. It imports httpx and does not require it; openai came with httpx until it changed to httpx2. It
# requires opentelemetry-util-genai>=0.4b0.dev, for which installers take 1.3b0, where the module `instruments` is gone. httpx by hand, and
# opentelemetry-util-genai==0.4b0, make it work.
# Whom it matters to: everyone who traces OpenAI's client with OpenTelemetry's own instrumentation. `opentelemetry-instrument` takes the
# error for a library that is not there, and skips it with a line of the level DEBUG: the program runs, and its calls are in no trace.
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
pip() { "$folder/venv/bin/pip" install -q --no-compile --disable-pip-version-check "$@"; }
missing() { { "$folder/venv/bin/python" -c "from opentelemetry.instrumentation.openai_v2 import OpenAIInstrumentor" 2>&1 || true; } | tail -1; }
pip openai==3.57.0 opentelemetry-instrumentation-openai-v2==2.4b0 opentelemetry-util-genai==1.3b0
first=$(missing)
pip httpx==0.28.1
second=$(missing)
pip opentelemetry-util-genai==0.4b0
third=$(missing)
echo "opentelemetry-instrumentation-openai-v2 2.4b0: ${first}; with httpx: ${second}; with opentelemetry-util-genai 0.4b0, too: ${third:-imported}"
[[ $first == *"'httpx'"* && $second == *"'opentelemetry.util.genai.instruments'"* && -z $third ]] || { echo "the behaviour has changed"; exit 1; }
