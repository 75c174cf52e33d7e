#!/usr/bin/env bash
# nvidia-nat-eval 1.9.0: rows of a dataset that share an id are evaluated once, and nothing says so.
#
# Expected: an evaluation of a file of four rows asks four questions; or, where ids must differ, it names the ids that do not.
# What happens: of rows with the same id only the first is evaluated. No log line and no result says that others were left out; the average
# is over fewer questions than the file has.
# Whom it matters to: whoever joins data sets or repeats questions in one file, and reads the average as that of the whole file.
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv --without-pip "$folder/venv"
# Of some hundred packages that the two require, reading a dataset imports these; uv unpacks them in a few seconds.
"${PYTHON:-python3}" -m pip install -q --disable-pip-version-check --no-compile --no-deps --target "$folder/uv" uv==0.13.8
install() { UV_CACHE_DIR="$folder/cache" "$folder/uv/bin/uv" pip install -q --python "$folder/venv/bin/python" "$@"; }
install --no-deps nvidia-nat-core==1.9.0 nvidia-nat-eval==1.9.0 nvidia-nat-atif==1.9.0
install pandas==2.3.3 langchain-core==1.7.2
cat >"$folder/try.py" <<'PY'
import json, logging, sys
from importlib.metadata import version
from pathlib import Path
from nat.data_models.dataset_handler import EvalDatasetJsonConfig
from nat.plugins.eval.dataset_handler.dataset_handler import DatasetHandler

records = []
handler = logging.Handler(); handler.emit = records.append
logging.getLogger().addHandler(handler); logging.getLogger().setLevel(logging.DEBUG)
rows = [{"id": name, "question": f"question {number}", "answer": ""} for number, name in enumerate(("a", "b", "a", "b"))]
path = Path(sys.argv[1]) / "rows.json"
path.write_text(json.dumps(rows))
dataset = DatasetHandler(EvalDatasetJsonConfig(file_path=str(path)), reps=1, concurrency=1)
items = dataset.get_eval_input_from_dataset(None).eval_input_items
lines = [record.getMessage() for record in records if record.name.startswith("nat.plugins.eval.dataset")]
print(f"nvidia-nat-eval {version('nvidia-nat-eval')}: {len(rows)} rows, {len(items)} items: {[item.input_obj for item in items]}; log lines: {lines}")
sys.exit([item.input_obj for item in items] != ["question 0", "question 1"] or bool(lines))
PY
"$folder/venv/bin/python" -W ignore "$folder/try.py" "$folder" || { echo "the behaviour has changed"; exit 1; }
