#!/usr/bin/env bash
# fastavro 1.13.1: a field that the writer did not have yet gets its default as the schema's JSON has it, and all records get the same object.
#
# Expected: the default of a field that only the reader's schema has is read as a value of the field's type, and belongs to the record.
# What happens: a default of bytes is a str, one of a timestamp or a decimal is the bare number or text, and the record that was just read cannot be
# written with the schema it was read with. A default list or map is one object for all records: what is added to the first record's list is in all
# that follow, and in those of later files, until the process ends.
# Whom it matters to: everyone whose schemas grow: old files are read with the new schema, as Avro is made for.
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv --without-pip "$folder/venv"
"${PYTHON:-python3}" -m pip --python "$folder/venv/bin/python" install -q --no-compile --disable-pip-version-check fastavro==1.13.1
cat >"$folder/try.py" <<'PY'
import io, sys
import fastavro

def schema(*fields):
    return fastavro.parse_schema({"type": "record", "name": "R", "fields": [{"name": "n", "type": "int"}, *fields]})

old = schema()
new = schema(
    {"name": "tags", "type": {"type": "array", "items": "string"}, "default": []},
    {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}, "default": 0},
    {"name": "hash", "type": "bytes", "default": "\u00ff"},
)

def file_of(*numbers):
    data = io.BytesIO()
    fastavro.writer(data, old, [{"n": number} for number in numbers])
    data.seek(0)
    return data

first, second = fastavro.reader(file_of(1, 2), new)
print(f"fastavro {fastavro.__version__}: the defaults of bytes and of a timestamp are read as {first['hash']!r} and {first['at']!r}")
try:
    fastavro.schemaless_writer(io.BytesIO(), new, first)
    error = None
except Exception as failure:
    error = type(failure).__name__
print(f"writing the record again: {error}")
first["tags"].append("seen")
(later,) = fastavro.reader(file_of(3), new)
print(f"after 'seen' was added to the first record, the second has {second['tags']}, and the record of another file {later['tags']}")
sys.exit((first["hash"], first["at"], error, second["tags"], later["tags"]) != ("\u00ff", 0, "TypeError", ["seen"], ["seen"]))
PY
"$folder/venv/bin/python" "$folder/try.py" || { echo "the behaviour has changed"; exit 1; }
