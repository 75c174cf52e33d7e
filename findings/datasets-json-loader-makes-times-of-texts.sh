#!/usr/bin/env bash
# datasets 5.2.0: load_dataset("json") makes times of texts that look like dates, and changes the text even if `features` say string.
#
# Expected: a JSON string stays a string; at the latest where `features=` declares the column as one.
# What happens: the types are guessed from the beginning of the file. A column, or a text inside of messages, whose first values look like dates becomes
# a timestamp. With `features` that say string the guess is made all the same, and the time is written as another text: "2026-01-01"
# becomes "2026-01-01 00:00:00". A later row with a plain text ends the load with an error if it is in another block. Parquet keeps texts.
# Whom it matters to: whoever trains on answers that are dates, or keeps names and ids that look like some.
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check datasets==5.2.0
cat >"$folder/try.py" <<'PY'
import json, sys
import datasets
from datasets import Features, List, Value, load_dataset

datasets.disable_progress_bars()

def load(rows, **options):
    with open("rows.jsonl", "w") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)
    return load_dataset("json", data_files="rows.jsonl", split="train", cache_dir="cache", **options)

dates = [{"task": "2026-01-01", "messages": [{"role": "user", "content": "2026-01-01"}]}] * 3
guessed = load(dates)[0]
typed = load(dates, features=Features({"task": Value("string"), "messages": List({"role": Value("string"), "content": Value("string")})}))[0]
print(f"datasets {datasets.__version__}: \"2026-01-01\" is loaded as {guessed['task']!r}, in messages as {guessed['messages'][0]['content']!r}")
print(f"with features that say string: {typed['task']!r}, in messages {typed['messages'][0]['content']!r}")
try:
    load([{"task": "2026-01-01", "padding": "x" * 1000}] * 20_000 + [{"task": "plain", "padding": ""}])
    error = None
except Exception as failure:
    error = type(failure).__name__
print(f"a plain text behind 20 MB of dates: {error}")
times = not isinstance(guessed["task"], str) and not isinstance(guessed["messages"][0]["content"], str)
sys.exit(not times or typed["task"] != "2026-01-01 00:00:00" or error is None)
PY
cd "$folder" && HF_HUB_OFFLINE=1 HF_HOME="$folder/hf" "$folder/venv/bin/python" try.py || { echo "the behaviour has changed"; exit 1; }
