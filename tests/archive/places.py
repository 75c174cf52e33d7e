"""Storage that dies, and archives without Kafka: made of records, run after run."""

from rollbus.archive.archive import Archive, open_archive
from rollbus.archive.files import ArchivedRecord
from rollbus.archive.manifest import ArchivedPartition, Manifest
from rollbus.archive.storage import PART, Storage

NAME = ("episode-events", 0)


class KillError(BaseException):
    """The process ends here."""


class DyingStorage(Storage):
    """Storage whose process is killed at its n-th operation, with a part of the file written if it wrote one."""

    def __init__(self, url: str, operations: int) -> None:
        super().__init__(url)
        self.operations_left = operations

    def create(self, name: str, data: bytes) -> None:
        self._live_on(name, data[: len(data) // 2])
        super().create(name, data)
        self._live_on()

    def delete(self, names: object) -> None:
        for name in list(names):  # type: ignore[call-overload]
            self._live_on()
            super().delete([name])

    def _live_on(self, name: str = "", half: bytes = b"") -> None:
        self.operations_left -= 1
        if self.operations_left == 0:
            if name:
                super().create(f"{name}.1{PART}", half)
            raise KillError


def make_record(offset: int, value: bytes | None = b"v", key: bytes | None = b"k") -> ArchivedRecord:
    return ArchivedRecord(offset, 1_000 + offset, 0, key, value, (("h", b"1"), ("none", None)))


def add_records(archive: Archive, *portions: list[ArchivedRecord]) -> Manifest:
    """Archive these records of NAME as one run does, a file for each portion."""
    begin = archive.contents.partitions[NAME].end if archive.contents.number else 0
    files = []
    for records in portions:
        files.append(archive.add_file(NAME, begin, records[-1].offset + 1, records))
        begin = files[-1].end
    manifest = archive.publish(
        namespace="rollbus.",
        cluster="c1",
        version="0",
        written_at_ms=1,
        purpose="run",
        files=tuple(files),
        partitions=(ArchivedPartition(*NAME, begin=0, end=begin),),
    )
    archive.delete_unnamed()
    return manifest


def new_archive(url: str, storage: Storage | None = None) -> Archive:
    archive = open_archive(url, may_be_new=True)
    return Archive(storage or archive.storage, archive.contents)


def records_of(archive: Archive) -> list[ArchivedRecord]:
    return [record for records in archive.read_partition(NAME) for record in records]
