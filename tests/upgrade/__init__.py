"""What a release wrote and users keep: ClickHouse rows, checkpoints and journal, settings; a folder for each release.

`python -m tests.upgrade --write 0.1.0` writes the folder of the release that is made, once: a release that is out
keeps its bytes for ever. Records and changelog rows have folders of their own: `tests/schemas/golden` and
`tests/streams/golden`.
"""

import json
import re
import shutil
from collections import defaultdict
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from rollbus.consumers.clickhouse.store.migrator import load_migrations
from rollbus.consumers.clickhouse.store.origin import Origin
from rollbus.settings import Settings
from rollbus.trainer.art_server.checkpoints.journal import Failure, Journal
from rollbus.trainer.art_server.endpoint.tokenizer import build_tokenizer
from rollbus.trainer.art_server.learner.torch_service import StepPlan, TorchService
from rollbus.trainer.art_server.model.config import ModelConfig
from rollbus.trainer.backends.model_settings import ModelOptions, ServiceSettings
from rollbus.trainer.backends.protocol import TrainResult
from rollbus.trainer.train_config import TrainConfig
from tests.builders import START_MS
from tests.consumers.all_rows import rows_of
from tests.consumers.story import story
from tests.models import create_model
from tests.sequences import three_answers

FOLDER = Path(__file__).parent
RELEASES = sorted(path for path in FOLDER.iterdir() if re.fullmatch(r"\d+\.\d+\.\d+", path.name))
TINY = ModelConfig(layers=1, width=16, heads=2, kv_heads=1, feed_forward=16, max_tokens=64)
OPTIONS = ModelOptions(max_rows=4)
RESULT = TrainResult(
    batch_hash="b1",
    base_version=0,
    version=1,
    state="completed",
    trained_ids=("t1", "t2"),
    dropped={"t3": "stale"},
    metrics={"loss": 0.25},
    checkpoint="checkpoints/0001",
)
FAILURE = Failure("out of memory", retriable=True)


def write_release(folder: Path, settings_page: Path) -> None:
    """Write everything that this code leaves with a user."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    *_, example = re.findall(r"```yaml\n(.*?)```", settings_page.read_text(), flags=re.DOTALL)
    (folder / "settings.yaml").write_text(example)
    (folder / "settings.txt").write_text("".join(f"{name}\n" for name in names_of_settings()))
    checksums = {str(migration.id): migration.checksum for migration in load_migrations()}
    stored_story = {"migrations": checksums, "tables": story_rows()}
    (folder / "clickhouse.json").write_text(json.dumps(stored_story, indent=1, default=_plain))
    base = create_model(folder / "base", TINY, build_tokenizer(["a few words"]), seed=7)
    with closing(TorchService(ServiceSettings("agent", base, folder / "art", options=OPTIONS))) as service:
        train(service, base_version=0)
    journal = Journal(folder / "journal.jsonl")
    journal.started("b1", 0, serves=True)
    journal.done(RESULT)
    journal.started("b2", 1)
    journal.failed("b2", FAILURE)
    journal.started("b3", 1)


def names_of_settings() -> list[str]:
    """Return every name that a settings file may have, with the sections that lead to it."""
    schema = Settings.model_json_schema()
    return sorted(set(_names(schema, schema["$defs"], ())))


def story_rows() -> dict[str, list[dict[str, Any]]]:
    """Return the rows of a small log, by table."""
    tables = defaultdict[str, list[dict[str, Any]]](list)
    for offset, (topic, _, record) in enumerate(story()):
        for table, row in rows_of(record, Origin("rollbus.", topic, 0, offset, START_MS + offset)):
            tables[table].append(row)
    return dict(sorted(tables.items()))


def read_clickhouse(folder: Path) -> tuple[dict[int, str], dict[str, list[dict[str, Any]]]]:
    """Return the checksums of a release's migrations, and rows by table."""
    stored_story = json.loads((folder / "clickhouse.json").read_text(), object_hook=_hex_as_bytes)
    return {int(number): checksum for number, checksum in stored_story["migrations"].items()}, stored_story["tables"]


def _plain(value: Any) -> Any:
    return {"hex": value.hex()} if isinstance(value, bytes) else list(value)


def _hex_as_bytes(value: dict[str, Any]) -> Any:
    return bytes.fromhex(value["hex"]) if set(value) == {"hex"} else value


def train(service: TorchService, *, base_version: int) -> None:
    """Make the next version."""
    plan = StepPlan(
        base_version,
        TrainConfig(learning_rate=1e-3),
        lambda version, metrics: {"version": version, "parent": base_version},
    )
    service._step(three_answers(), plan)


def _names(schema: Any, definitions: Any, path: tuple[str, ...]) -> Iterator[str]:
    if isinstance(schema, dict):
        if "$ref" in schema:
            name = schema["$ref"].rpartition("/")[2]
            yield from _names(definitions[name], definitions, path)
        for name, inner in schema.get("properties", {}).items():
            yield ".".join((*path, name))
            yield from _names(inner, definitions, (*path, name))
        for word in ("anyOf", "oneOf", "allOf", "prefixItems"):
            for inner in schema.get(word, ()):
                yield from _names(inner, definitions, path)
        for word in ("items", "additionalProperties"):
            yield from _names(schema.get(word), definitions, path)
