"""An archive without Kafka: what it was given comes back, killed at any byte, and what was altered is named."""

import json
import os
import resource
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollbus.archive.archive import open_archive
from rollbus.archive.files import ArchivedRecord, digest_of, from_parquet, to_parquet
from rollbus.archive.forget import forget_in_archive
from rollbus.archive.storage import Storage
from rollbus.schemas.codec import encode
from rollbus.schemas.errors import ConfigurationError, DataLossError, FencedError, UnavailableError
from rollbus.schemas.ids import trajectory_id
from rollbus.schemas.records.drops import Drop, kept_bytes
from tests.archive.places import DyingStorage, KillError, add_records, make_record, new_archive, records_of
from tests.builders import make_episode, make_excluded, make_letter, make_score, make_trajectory

FIRST, SECOND, THIRD = ([make_record(number) for number in numbers] for numbers in ((0, 1, 3), (4, 9), (10,)))
some_bytes = st.none() | st.binary(max_size=20)
some_records = st.lists(
    st.tuples(
        st.integers(0, 2**60),
        st.integers(-1, 2**50),
        st.integers(0, 1),
        some_bytes,
        some_bytes,
        st.lists(st.tuples(st.text(st.characters(exclude_categories=["Cs"]), max_size=5), some_bytes)).map(tuple),
    ).map(lambda row: ArchivedRecord(*row)),
    min_size=1,
)


@given(some_records)
def test_every_byte_of_a_record_comes_back_from_a_file(records: list[ArchivedRecord]) -> None:
    read_records = from_parquet(to_parquet(records), "a file")
    assert read_records == records
    assert digest_of(read_records) == digest_of(records)


@given(some_records, some_records)
def test_other_records_have_another_digest(left: list[ArchivedRecord], right: list[ArchivedRecord]) -> None:
    def without_location(records: list[ArchivedRecord]) -> list[ArchivedRecord]:
        return [record._replace(timestamp_type=0) for record in records]

    assert (digest_of(left) == digest_of(right)) == (without_location(left) == without_location(right))


@pytest.mark.parametrize("operation", range(1, 9))
def test_a_run_killed_at_any_byte_leaves_a_whole_archive_to_the_next_run(tmp_path: Path, operation: int) -> None:
    url = str(tmp_path)
    add_records(new_archive(url), FIRST)
    with suppress(KillError):
        add_records(new_archive(url, DyingStorage(url, operation)), SECOND, THIRD)
    archive = open_archive(url)
    assert archive.verify() == []
    assert records_of(archive) in (FIRST, [*FIRST, *SECOND, *THIRD])
    if archive.contents.number == 1:
        add_records(archive, [*SECOND, *THIRD])  # in other portions than the one that was killed
    assert records_of(open_archive(url)) == [*FIRST, *SECOND, *THIRD]
    assert open_archive(url).find_unnamed() == []


def test_a_second_archiver_at_the_same_place_is_refused_and_leaves_no_file(tmp_path: Path) -> None:
    first_archiver, second_archiver = new_archive(str(tmp_path)), new_archive(str(tmp_path))
    add_records(first_archiver, FIRST)
    with pytest.raises(FencedError, match="another archiver has written manifests/00000001"):
        add_records(second_archiver, [*FIRST, *SECOND])
    archive = open_archive(str(tmp_path))
    assert (archive.verify(), records_of(archive)) == ([], FIRST)
    assert Storage(str(tmp_path)).list("data") == list(archive.contents.files)


def test_an_archive_that_grows_while_it_is_opened_is_not_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = str(tmp_path)
    add_records(archiver := new_archive(url), [make_record(0)])
    list_names, listed = Storage.list, list[str]()

    def list_then_grow(storage: Storage, folder: str) -> list[str]:
        names = list_names(storage, folder)
        if storage is not archiver.storage and not listed:
            listed.append(folder)
            add_records(archiver, [make_record(1)])
        return names

    monkeypatch.setattr(Storage, "list", list_then_grow)
    assert open_archive(url).contents.number in (1, 2)
    assert listed


def test_a_file_that_a_later_manifest_replaced_is_not_called_lost(tmp_path: Path) -> None:
    url = str(tmp_path)
    events = make_episode("ann")
    add_records(
        archiver := new_archive(url), [make_record(offset, encode(event)) for offset, event in enumerate(events)]
    )
    reader = open_archive(url)
    assert forget_in_archive(archiver, frozenset({"ann"}), now_ms=1, version="0") == len(events)
    with pytest.raises(UnavailableError, match="give the command again"):
        reader.verify()
    assert open_archive(url).verify() == []


def test_an_archiver_with_the_same_process_id_writes_into_no_file_of_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storages = [Storage(str(tmp_path)) for _ in range(2)]
    sync = os.fsync

    def write_meanwhile(descriptor: int) -> None:
        if len(storages) == 2:
            storages.pop().create("manifests/1.json", b"of the other")
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", write_meanwhile)
    with pytest.raises(FileExistsError):
        storages[0].create("manifests/1.json", b"of this one, which is longer")
    assert storages[0].read("manifests/1.json") == b"of the other"
    assert storages[0].list("") == ["manifests/1.json"]


def test_a_file_that_was_altered_or_is_gone_is_named(tmp_path: Path) -> None:
    archive = new_archive(str(tmp_path))
    altered, gone = add_records(archive, FIRST, SECOND).files
    file = tmp_path / altered.path
    file.chmod(0o644)
    file.write_bytes(file.read_bytes()[:-1] + b"!")
    (tmp_path / gone.path).unlink()
    troubles = open_archive(str(tmp_path)).verify()
    assert [name for name in (altered.path, gone.path) for trouble in troubles if name in trouble] == [
        altered.path,
        gone.path,
    ]
    assert "was altered" in troubles[0]
    assert "is gone" in troubles[1]


@pytest.mark.parametrize("change", ["a number", "a hash", "cut", "another's", "gone"])
def test_a_manifest_that_was_altered_is_refused_by_its_name(tmp_path: Path, change: str) -> None:
    archive = new_archive(str(tmp_path))
    for records in (FIRST, SECOND, THIRD):
        add_records(archive, records)
    path = tmp_path / "manifests" / "00000002.json"
    plain = json.loads(path.read_text())
    if change == "a number":
        plain["files"][0]["records"] = 1
        path.write_text(json.dumps(plain))
    elif change == "a hash":  # made to fit: the next manifest knows the old one
        other = new_archive(str(tmp_path / "other"))
        add_records(other, FIRST)
        add_records(other, [make_record(4, b"other")])
        path.write_bytes((tmp_path / "other" / "manifests" / "00000002.json").read_bytes())
    elif change == "cut":
        path.write_bytes(path.read_bytes()[:100])
    elif change == "another's":
        path.write_bytes((tmp_path / "manifests" / "00000001.json").read_bytes())
    else:
        path.unlink()
    with pytest.raises(DataLossError, match=r"manifests/0000000[23]\.json"):
        open_archive(str(tmp_path))


def test_a_manifest_of_a_newer_rollbus_is_refused(tmp_path: Path) -> None:
    add_records(new_archive(str(tmp_path)), FIRST)
    path = tmp_path / "manifests" / "00000001.json"
    path.write_text(path.read_text().replace('"format": 1', '"format": 2'))
    with pytest.raises(DataLossError, match="has format 2, and this rollbus reads 1; take a newer rollbus"):
        open_archive(str(tmp_path))


def test_a_place_without_an_archive_and_one_that_cannot_be_reached_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="there is no archive at"):
        open_archive(str(tmp_path / "none"))
    with pytest.raises(ConfigurationError, match="no archive can be at nonsense://x"):
        open_archive("nonsense://x")


def test_a_full_target_is_named_and_nothing_is_half_published(tmp_path: Path) -> None:
    add_records(new_archive(str(tmp_path)), FIRST)
    program = (  # a limit of file sizes stands for the end of the disk: the same calls fail
        "import sys\nfrom tests.archive.places import *\n"
        "add_records(new_archive(sys.argv[1]), [make_record(4, bytes(range(256)) * 400)])"
    )
    limit = (2_048, 2_048)
    completed = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)],
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, limit),
        cwd=Path(__file__).parents[2],
        env={"PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "UnavailableError: data/00000002/episode-events-0-4-" in completed.stderr
    assert "cannot be written: File too large" in completed.stderr
    archive = open_archive(str(tmp_path))
    assert (archive.verify(), records_of(archive)) == ([], FIRST)
    assert not list(tmp_path.rglob("*.part"))


def of_ann_and_bob() -> list[ArchivedRecord]:
    """Records of two people, in one partition as it never is; of ann also what only mentions her."""
    name = trajectory_id("ann-7")
    letter = make_letter(message="of ann-7", **kept_bytes(b"k", b"no frame"))
    drop = Drop(unit="trajectory", unit_id=name, reason="r", stage="s", detail="text", dropped_at_ms=1)
    records: list[object] = [*make_episode("ann-7"), *make_episode("bob"), make_trajectory("ann-7")]
    records += [make_score(name, episode_id="ann-7"), make_trajectory("bob"), letter, drop, make_excluded("ann-7")]
    values = [*map(encode, records), b"junk about ann-7", b"junk"]
    return [make_record(offset, value) for offset, value in enumerate(values)]


@pytest.mark.parametrize("operation", range(1, 8))
def test_forgetting_is_completed_after_a_kill_at_any_point(tmp_path: Path, operation: int) -> None:
    url, who = str(tmp_path), frozenset({"ann-7"})
    add_records(new_archive(url), of_ann_and_bob(), [make_record(100, encode(make_trajectory("bob")))])
    count = len(make_episode("ann-7")) + 5
    with suppress(KillError):
        forget_in_archive(new_archive(url, DyingStorage(url, operation)), who, now_ms=1, version="0")
    forget_in_archive(open_archive(url), who, now_ms=1, version="0")
    archive = open_archive(url)
    assert (archive.verify(), archive.find_unnamed()) == ([], [])
    assert forget_in_archive(archive, who, now_ms=1, version="0") == 0
    values = [record.value or b"" for record in records_of(archive)]
    assert len(values) == len(of_ann_and_bob()) + 1 - count
    assert [value for value in values if b"ann-7" in value] == [encode(make_excluded("ann-7"))]
    assert b"junk" in values


def damage(path: Path) -> None:
    path.chmod(0o644)
    path.write_bytes(path.read_bytes()[:100])


def test_one_damaged_manifest_hides_no_other_damage(tmp_path: Path) -> None:
    archive = new_archive(str(tmp_path))
    for records in (FIRST, SECOND, THIRD):
        add_records(archive, records)
    damage(tmp_path / "manifests" / "00000002.json")
    (file,) = archive.contents.manifests[2].files
    (tmp_path / file.path).unlink()
    damaged = open_archive(str(tmp_path), despite_damage=True)
    troubles = damaged.verify()
    assert len(troubles) == 2, troubles
    assert "manifests/00000002.json" in troubles[0]
    assert file.path in troubles[1]
    assert damaged.find_unnamed() == [], "what a damaged manifest names must not be deleted"


def test_a_deleted_last_manifest_is_noticed(tmp_path: Path) -> None:
    archive = new_archive(str(tmp_path))
    for records in (FIRST, SECOND):
        add_records(archive, records)
    (tmp_path / "manifests" / "00000002.json").unlink()
    with pytest.raises(DataLossError, match=r"manifests/00000002\.json of the archive .* is gone"):
        open_archive(str(tmp_path))


@pytest.mark.parametrize("is_gone", [True, False], ids=["gone", "damaged"])
def test_archiving_continues_after_a_damaged_last_manifest(tmp_path: Path, is_gone: bool) -> None:
    """A copy of the manifest, put back later, heals the archive."""
    archive = new_archive(str(tmp_path))
    for records in (FIRST, SECOND):
        add_records(archive, records)
    path = tmp_path / "manifests" / "00000002.json"
    copy = path.read_bytes()
    if is_gone:
        path.unlink()
    else:
        damage(path)
    add_records(open_archive(str(tmp_path), despite_damage=True), SECOND, THIRD)  # as the log still has them
    damaged = open_archive(str(tmp_path), despite_damage=True)
    assert records_of(damaged) == [*FIRST, *SECOND, *THIRD]
    assert [("00000002.json" in trouble) for trouble in damaged.verify()] == [True]
    path.unlink(missing_ok=True)
    path.write_bytes(copy)
    healed = open_archive(str(tmp_path))
    assert (healed.verify(), records_of(healed)) == ([], [*FIRST, *SECOND, *THIRD])


def test_a_run_cut_off_before_its_head_is_not_damage(tmp_path: Path) -> None:
    archive = new_archive(str(tmp_path))
    add_records(archive, FIRST)
    (tmp_path / "heads" / "00000001").unlink()
    opened = open_archive(str(tmp_path))
    opened.write_head()
    add_records(opened, SECOND)
    assert sorted(path.name for path in (tmp_path / "heads").iterdir()) == ["00000001", "00000002"]
