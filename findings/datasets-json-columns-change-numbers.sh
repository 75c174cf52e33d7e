#!/usr/bin/env bash
# datasets 5.2.0: a column of the type Json reads 0.3 as 0.30000000000000004, and stores 1e-12 as 0.0.
#
# Expected: a JSON value comes out of the column as it went in; every float of Python has a JSON text that is read back exactly.
# What happens: the column decodes with pandas' ujson, which adds the whole part to the digits behind the point times 0.1ⁿ. Of numbers with
# one digit behind the point every four-hundredth changes, and of random ones every third. Values are encoded with ten digits behind the
# point, so small ones become 0. Parquet files with JSON columns, `Dataset.from_list` and `load_dataset("json")` of mixed rows are all
# affected: Json is the type that datasets infers where objects have different keys, as the arguments of tool calls do.
# Whom it matters to: whoever trains on tool calls: the model learns {"temperature": 0.30000000000000004}.
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check datasets==5.2.0
cat >"$folder/try.py" <<'PY'
import json, random, sys
import datasets, pyarrow as pa, pyarrow.parquet as pq

datasets.disable_progress_bars()
features = datasets.Features({"arguments": datasets.Json()})

def through_the_column(value):
    return datasets.Dataset.from_list([{"arguments": {"x": value}}], features=features)[0]["arguments"]["x"]

seen = {value: through_the_column(value) for value in (0.3, 1.7, 1e-12, 0.5)}
for value, back in seen.items():
    print(f"datasets {datasets.__version__}: {value!r} in a Json column comes back as {back!r}")

draw = random.Random(1)
numbers = [round(draw.uniform(-180, 180), 1) for _ in range(20_000)]
texts = pa.ExtensionArray.from_storage(pa.json_(), pa.array([json.dumps({"x": number}) for number in numbers]))
pq.write_table(pa.table({"arguments": texts}), "numbers.parquet")
loaded = datasets.load_dataset("parquet", data_files="numbers.parquet", cache_dir="cache", split="train")
changed = sum(row["arguments"]["x"] != number for row, number in zip(loaded, numbers, strict=True))
print(f"of 20,000 numbers with one digit behind the point in a Parquet file, {changed} are read as others")
sys.exit(seen != {0.3: 0.30000000000000004, 1.7: 1.7000000000000002, 1e-12: 0.0, 0.5: 0.5} or not 20 < changed < 200)
PY
cd "$folder" && HF_HUB_OFFLINE=1 HF_HOME="$folder/hf" "$folder/venv/bin/python" try.py || { echo "the behaviour has changed"; exit 1; }
