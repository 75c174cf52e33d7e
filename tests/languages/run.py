"""Read every golden record, and numbers of up to 64 bits, with Avro's libraries for JavaScript, Go and Rust.

    python -m tests.languages.run FOLDER

FOLDER has what npm has installed, and gets what cargo builds. Java's library is tested by `make test-java`.
"""

import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from rollbus.schemas.avro.types import avsc_path
from rollbus.schemas.codec import encode
from rollbus.schemas.records.control import Tick
from rollbus.schemas.topics import RECORDS
from tests.schemas.golden import FOLDER, sample

HERE = Path(__file__).parent
BY_NAME = {record.__name__: record for record in RECORDS}
LARGE = (2**31 - 1, 2**31, 2**53 + 1, 2**63 - 1)


def cases() -> list[tuple[dict[str, Any], str, Any]]:
    """Return each record's schema, its bytes as hexadecimal digits, and what it says."""
    golden = []
    for path in sorted(FOLDER.glob("*.hex")):
        name, version = path.stem.split(".")
        schema = json.loads(avsc_path(BY_NAME[name], int(version)).read_text())
        golden.append((schema, path.read_text().strip(), json.loads(path.with_suffix(".json").read_text())))
    schema = json.loads(avsc_path(Tick, 1).read_text())
    for value in LARGE:
        tick = dataclasses.replace(sample(Tick, 1), stream_time_ms=value)
        golden.append((schema, encode(tick).hex(), dataclasses.asdict(tick)))
    return golden


def comparable(value: Any) -> Any:
    """Return a value with whole numbers as decimal texts, as the programs print them."""
    if isinstance(value, dict):
        return {name: comparable(item) for name, item in value.items()}
    if isinstance(value, list):
        return [comparable(item) for item in value]
    is_whole = isinstance(value, int | float) and not isinstance(value, bool) and value == int(value)
    return str(int(value)) if is_whole else value


def main(folder: Path) -> None:
    records = cases()
    lines = "".join(json.dumps({"schema": schema, "hex": text}) + "\n" for schema, text, _ in records)
    programs: dict[str, tuple[list[str], Path]] = {
        "avsc 5.7.9": (["node", "read.mjs", str(folder.resolve())], HERE / "js"),
        "hamba/avro 2.31.0": (["go", "run", "."], HERE / "go"),
        "apache-avro 0.22.0": (["cargo", "run", "-q", "--locked", "--target-dir", str(folder / "rust")], HERE / "rust"),
    }
    for name, (command, place) in programs.items():
        try:
            result = subprocess.run(command, input=lines, capture_output=True, text=True, cwd=place)
        except FileNotFoundError:
            sys.exit(f"{name}: {command[0]} is missing; install Node, Go and Rust (1.88 or newer)")
        if result.returncode:
            sys.exit(f"{name}: {result.stderr[-4000:]}")
        printed = [json.loads(line) for line in result.stdout.splitlines()]
        for (schema, _, expected), record in zip(records, printed, strict=True):
            assert comparable(record) == comparable(expected), (name, schema["name"], record, expected)
        print(f"{name} reads {len(records)} records as they were written")


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
