#!/usr/bin/env bash
# outlines-core 0.2.14: the expression for a JSON schema leaves out its bounds, and a pattern beside a length, without a word.
#
# Expected: a model that is held to the expression of a schema writes what the schema allows; what cannot be expressed is refused, as `not` and
# unknown formats are.
# What happens: minimum, maximum, multipleOf and uniqueItems are ignored: for an integer from 1 to 5 the expression matches 9 and -4. A pattern holds
# by itself, but is ignored beside maxLength or minLength. `not` and the format ipv4 raise an error.
# Whom it matters to: whoever lets a model or a judge give a score from 1 to 5 by it, and takes the number without looking.
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv --without-pip "$folder/venv"
"${PYTHON:-python3}" -m pip --python "$folder/venv/bin/python" install -q --no-compile --disable-pip-version-check outlines-core==0.2.14
cat >"$folder/try.py" <<'PY'
import json, re, sys
from importlib.metadata import version
from outlines_core.json_schema import build_regex_from_schema

print("outlines-core", version("outlines-core"))

def matches(schema, text):
    try:
        seen = bool(re.fullmatch(build_regex_from_schema(json.dumps(schema)), text))
    except Exception:
        seen = "refused"
    print(f"{json.dumps(schema)} and {text}: {seen}")
    return seen

score = {"type": "integer", "minimum": 1, "maximum": 5}
name = {"type": "string", "pattern": "^[a-z]+$"}
wrong = [
    matches(score, "9"), matches(score, "-4"), matches({"type": "integer", "multipleOf": 5}, "7"),
    matches({"type": "array", "items": {"type": "integer"}, "uniqueItems": True}, "[1, 1]"),
    matches({**name, "maxLength": 3}, '"A1"'), matches({**name, "minLength": 1}, '"A1"'),
]
right = [matches(score, '"a"'), matches(name, '"A1"'), matches({"type": "array", "items": {"type": "integer"}, "maxItems": 1}, "[1, 1]")]
refused = [matches({"not": {"type": "integer"}}, "1"), matches({"type": "string", "format": "ipv4"}, '"a"')]
sys.exit(not all(value is True for value in wrong) or any(right) or refused != ["refused"] * 2)
PY
"$folder/venv/bin/python" "$folder/try.py" || { echo "the behaviour has changed"; exit 1; }
