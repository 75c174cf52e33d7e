#!/usr/bin/env bash
# ClickHouse (chDB 4.4.0): in a column of the type JSON the text "4711" becomes "2106-02-07 06:28:15" if a row before it has a time at its path.
#
# Expected: a JSON string comes out of the column as it went in; digits in quotes are no number, and no time.
# What happens: the type of a path is guessed anew for each insert, and once it is DateTime, later texts of that insert are read as times wherever that
# can be done: ten digits as seconds since 1970, four as a year, which is then moved into what DateTime can hold. The same rows in another
# order, or one at a time, keep their texts; so does input_format_try_infer_datetimes=0. Texts of times lose "T" and their zone in any case.
# Whom it matters to: whoever keeps answers of models, arguments of tools or labels in a JSON column, where a key holds a date in one row and an
# order number in the next. What was stored depends on how rows were put together for the insert.
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv --without-pip "$folder/venv"
"${PYTHON:-python3}" -m pip --python "$folder/venv/bin/python" install -q --no-compile --disable-pip-version-check chdb==4.4.0
cat >"$folder/try.py" <<'PY'
import json, sys
from importlib.metadata import version
from chdb import session

client = session.Session(sys.argv[1])
client.query("CREATE DATABASE d")
client.query("USE d")

def through_the_column(*texts, settings=""):
    client.query("CREATE OR REPLACE TABLE t (n UInt32, j JSON) ENGINE = MergeTree ORDER BY n")
    rows = "\n".join(json.dumps({"n": number, "j": {"answer": text}}) for number, text in enumerate(texts))
    client.query(f"INSERT INTO t {settings} FORMAT JSONEachRow {rows}")
    lines = str(client.query("SELECT toString(j) FROM t ORDER BY n", "TabSeparatedRaw")).split("\n")
    back = [json.loads(line)["answer"] for line in lines if line]
    print(f"{list(texts)} {settings} → {back}")
    return back

print("chDB", version("chdb"), "engine", str(client.query("SELECT version()", "TabSeparated")).strip())
time = "2026-01-02 03:04:05"
seen = [
    through_the_column(time, "4711", "1234567890"),
    through_the_column("4711", "1234567890", time),
    through_the_column(time, "4711", "1234567890", settings="SETTINGS input_format_try_infer_datetimes = 0"),
    through_the_column("2026-01-02T03:04:05+02:00"),
]
sys.exit(seen != [
    [time, "2106-02-07 06:28:15", "2009-02-13 23:31:30"], ["4711", "1234567890", time], [time, "4711", "1234567890"], ["2026-01-02 01:04:05"],
])
PY
TZ=UTC "$folder/venv/bin/python" "$folder/try.py" "$folder/data" || { echo "the behaviour has changed"; exit 1; }
