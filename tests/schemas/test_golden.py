"""Bytes that a release has written are read for ever, and the newest version is written as it was released."""

import json
from pathlib import Path

import pytest

from rollbus.schemas.avro.types import newest_version
from rollbus.schemas.codec import decode, encode
from rollbus.schemas.topics import RECORDS
from tests.schemas.golden import FOLDER, path_of, plain, sample

BY_NAME = {record.__name__: record for record in RECORDS}
RELEASED_FILES = sorted(FOLDER.glob("*.hex"))
REMEDY = "run python -m tests.schemas.golden --write"


@pytest.mark.parametrize("path", RELEASED_FILES, ids=lambda path: path.stem)
def test_released_bytes_are_read_to_the_same_values(path: Path) -> None:
    name, version = path.stem.split(".")
    assert decode(bytes.fromhex(path.read_text())) == sample(BY_NAME[name], int(version))


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.__name__)
def test_the_newest_version_is_written_as_it_was_released(record: type) -> None:
    version = newest_version(record)
    assert encode(sample(record, version)).hex() == path_of(record, version).read_text().strip()


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.__name__)
def test_no_released_version_is_without_its_bytes(record: type) -> None:
    assert all(path_of(record, version).exists() for version in range(1, newest_version(record) + 1)), REMEDY


@pytest.mark.parametrize("path", RELEASED_FILES, ids=lambda path: path.stem)
def test_the_plain_form_for_other_languages_says_what_the_bytes_say(path: Path) -> None:
    name, version = path.stem.split(".")
    assert json.loads(path.with_suffix(".json").read_text()) == plain(BY_NAME[name], int(version)), REMEDY
