#!/usr/bin/env bash
# math-verify 0.9.0: 12% is equal to 0.12 and to 12, so where a percentage is asked for, an answer wrong by a factor of a hundred is right.
#
# Expected: 12% is equal to 0.12, or one reads it without its sign as 12, but not both; what is equal to the same is equal.
# What happens: `verify` says that 12% equals 12, that it equals 0.12, and that 12 does not equal 0.12. Either may be the right answer and either the
# one to judge. Units are left out in the same way: 5 m equals 5 cm.
# Whom it matters to: whoever rewards or evaluates answers with it: a model that takes a fraction for a percentage is told that it is right.
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv --without-pip "$folder/venv"
"${PYTHON:-python3}" -m pip --python "$folder/venv/bin/python" install -q --no-compile --disable-pip-version-check math-verify==0.9.0
cat >"$folder/try.py" <<'PY'
import sys
from importlib.metadata import version
from math_verify import parse, verify

pairs = [("12%", "12"), ("12%", "0.12"), ("0.12", "12%"), ("12", "12%"), ("12", "0.12"), (r"$12\%$", "$12$"), (r"$12\%$", "$0.12$"), ("5 m", "5 cm")]
seen = [verify(parse(right), parse(answer)) for right, answer in pairs]
for (right, answer), equal in zip(pairs, seen):
    print(f"math-verify {version('math-verify')}: right is {right}, the answer is {answer}: {equal}")
sys.exit(seen != [True, True, True, True, False, True, True, True])
PY
"$folder/venv/bin/python" "$folder/try.py" || { echo "the behaviour has changed"; exit 1; }
