#!/usr/bin/env bash
# ClickHouse (chDB 4.4.0): stddevSamp of fourteen equal values is not 0, and of 1e9 and 1e9 + 1 it is 0.
#
# Expected: equal values have no deviation, and that of two values which differ by 1 is 0.707, however large they are.
# What happens: stddevSamp, varSamp, covarSamp and corr subtract two large sums of squares. Fourteen times 0.9 as Float32 give 0.00027; 1e9 and 1e9 + 1
# as Float64 give 0. stddevSampStable and its like (Welford's method) are right; the plain names are the ones that other databases have.
# Whom it matters to: whoever draws intervals around means of rewards, times or money: equal values get a band, and large ones lose theirs.
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check chdb==4.4.0
cat >"$folder/try.py" <<'PY'
import sys
import chdb

def ask(function, values):
    return float(str(chdb.query(f"SELECT {function}(x) FROM (SELECT arrayJoin({values}) AS x)", "TabSeparated")))

equal, huge = "arrayResize([toFloat32(0.9)], 14, toFloat32(0.9))", "[1e9, 1e9 + 1]"
seen = {(function, name): ask(function, values) for function in ("stddevSamp", "stddevSampStable") for name, values in (("equal", equal), ("huge", huge))}
print("chDB", chdb.__version__, "engine", str(chdb.query("SELECT version()", "TabSeparated")).strip())
for (function, name), value in seen.items():
    print(f"{function} of {'fourteen equal Float32' if name == 'equal' else '1e9 and 1e9 + 1'}: {value:.6f}")
sys.exit(
    not 1e-5 < seen["stddevSamp", "equal"] < 1e-2 or seen["stddevSamp", "huge"] != 0
    or seen["stddevSampStable", "equal"] != 0 or abs(seen["stddevSampStable", "huge"] - 0.5**0.5) > 1e-9
)
PY
"$folder/venv/bin/python" "$folder/try.py" || { echo "the behaviour has changed"; exit 1; }
