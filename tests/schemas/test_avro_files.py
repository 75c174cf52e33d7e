"""The .avsc files are the contract: they agree with the dataclasses, and no released one is ever lost."""

import dataclasses
import json

import pytest

from rollbus.schemas.avro.types import AVRO_FOLDER, avro_schema, avsc_path, avsc_text, newest_version
from rollbus.schemas.topics import RECORDS, TOPICS


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.__name__)
def test_newest_avsc_says_what_the_dataclass_says(record: type) -> None:
    path = avsc_path(record, newest_version(record))
    assert path.read_text() == avsc_text(avro_schema(record)), "run python -m rollbus.schemas.avro.types"


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.__name__)
def test_a_field_added_after_version_1_has_a_default(record: type) -> None:
    first = {field["name"] for field in json.loads(avsc_path(record, 1).read_text())["fields"]}
    for field in avro_schema(record)["fields"]:
        assert field["name"] in first or "default" in field


def test_every_file_belongs_to_a_registered_record() -> None:
    names = {record.__name__ for record in RECORDS}
    assert {path.name.split(".")[0] for path in AVRO_FOLDER.glob("*.avsc")} == names


def test_every_record_on_a_topic_is_registered() -> None:
    assert {record for topic in TOPICS for record in topic.records} <= set(RECORDS)


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.__name__)
def test_records_are_frozen_and_slotted(record: type) -> None:
    assert dataclasses.is_dataclass(record)
    assert record.__dataclass_params__.frozen  # type: ignore[attr-defined]
    assert "__slots__" in vars(record)
