"""An archive at a place: its chain of manifests read, its files read and checked, and the next manifest published.

manifests/00000017.json                                 what was added, with SHA-256; written after its files
heads/00000017                                          its SHA-256, written last, so a manifest that is gone is noticed
data/00000017/episode-events-3-120000-9c41f0d2.parquet  its files: number of the manifest, partition, first offset, hash
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field

from rollbus.archive.files import ArchivedRecord, from_parquet, to_parquet
from rollbus.archive.manifest import (
    ArchivedFile,
    ArchivedPartition,
    Contents,
    Manifest,
    Missing,
    Partition,
    Purpose,
    check_order,
)
from rollbus.archive.storage import Storage
from rollbus.schemas.errors import ConfigurationError, DataLossError, FencedError, UnavailableError

MANIFESTS, HEADS, DATA = "manifests", "heads", "data"
Progress = Callable[[int, int], None]


@dataclass(slots=True)
class Archive:
    """What is at a place now."""

    storage: Storage
    contents: Contents = field(default_factory=Contents)
    damage: list[str] = field(default_factory=list)
    """Manifests that are gone or altered, a sentence each; only if it was opened in spite of them."""

    @property
    def url(self) -> str:
        """Where it is."""
        return self.storage.url

    def read_file(self, file: ArchivedFile) -> list[ArchivedRecord]:
        """Return a file's records; raises DataLossError, with its name, if it is not as it was written.

        Raises UnavailableError if a later manifest has replaced it meanwhile, as `rollbus forget` does.
        """
        name = f"{file.path} of the archive {self.url}"
        try:
            data = self.storage.read(file.path)
        except FileNotFoundError:
            now = open_archive(self.url, despite_damage=True)
            if not now.damage and file.path not in now.contents.files:
                what = f"{name} was replaced while it was to be read, such as by `rollbus forget`"
                raise UnavailableError(f"{what}; give the command again") from None
            raise DataLossError(f"{name} is gone; take it from a copy") from None
        if hashlib.sha256(data).hexdigest() != file.sha256:
            raise DataLossError(
                f"{name} was altered: it has another SHA-256 than its manifest says; take it from a copy"
            )
        records = from_parquet(data, name)
        offsets = [record.offset for record in records]
        if (
            len(records) != file.records
            or offsets != sorted(set(offsets))
            or not file.begin <= offsets[0] <= offsets[-1] < file.end
        ):
            raise DataLossError(f"{name} does not hold the records that its manifest says; take both from a copy")
        return records

    def read_partition(self, partition: Partition, begin: int = 0) -> Iterator[list[ArchivedRecord]]:
        """Yield a partition's records in order, a file at a time, without the files that end before `begin`."""
        for file in self.contents.files_of(partition):
            if file.end > begin:
                yield self.read_file(file)

    def verify(self, progress: Progress = lambda done, of: None) -> list[str]:
        """Read every file, and return a sentence for each, and each manifest, that is not as it was written."""
        troubles = list(self.damage)
        for number, file in enumerate(sorted(self.contents.files.values()), 1):
            try:
                self.read_file(file)
            except DataLossError as error:
                troubles.append(str(error))
            progress(number, len(self.contents.files))
        for partition in self.contents.partitions:
            try:
                check_order(self.contents.files_of(partition))
            except DataLossError as error:
                troubles.append(str(error))
        return troubles

    def add_file(self, partition: Partition, begin: int, end: int, records: list[ArchivedRecord]) -> ArchivedFile:
        """Write a file for the next manifest; until that names it, it does not count."""
        data, (topic, number) = to_parquet(records), partition
        digest = hashlib.sha256(data).hexdigest()
        path = f"{DATA}/{self.contents.number + 1:08}/{topic}-{number}-{begin}-{digest[:16]}.parquet"
        with suppress(FileExistsError):  # an attempt that was cut off has written the same bytes
            self.storage.create(path, data)
        times = [record.timestamp for record in records]
        return ArchivedFile(
            topic=topic,
            partition=number,
            begin=begin,
            end=end,
            path=path,
            records=len(records),
            bytes=len(data),
            sha256=digest,
            first_ms=min(times),
            last_ms=max(times),
        )

    def publish(
        self,
        *,
        namespace: str,
        cluster: str,
        version: str,
        written_at_ms: int,
        purpose: Purpose,
        files: tuple[ArchivedFile, ...],
        partitions: tuple[ArchivedPartition, ...],
        replaced: tuple[str, ...] = (),
        missing: tuple[Missing, ...] = (),
    ) -> Manifest:
        """Write the next manifest; raises FencedError, and deletes its files, if another archiver has written it.

        Behind a damaged manifest its files are replaced: what they hold is archived again, as far as the log has it.
        """
        number, previous = self.contents.number + 1, self.contents.last_digest
        if previous is None:
            replaced = (*replaced, *self.storage.list(f"{DATA}/{number - 1:08}"))
            previous = self._read_head(number - 1)
        manifest = Manifest(
            number=number,
            previous=previous,
            namespace=namespace,
            cluster=cluster,
            version=version,
            written_at_ms=written_at_ms,
            purpose=purpose,
            files=files,
            replaced=replaced,
            partitions=partitions,
            missing=missing,
        )
        name, data = _manifest_name(manifest.number), manifest.to_bytes()
        try:
            self.storage.create(name, data)
        except FileExistsError:
            newest = open_archive(self.url, despite_damage=True)
            newest.storage.delete(newest.find_unnamed(f"{DATA}/{number:08}"))
            raise FencedError(
                f"another archiver has written {name} of the archive {self.url} meanwhile, so nothing of this one "
                "counts; let one of them end, and give the command again"
            ) from None
        self.contents.add(data, name)
        self.write_head()
        return manifest

    def write_head(self) -> None:
        """Note the newest manifest, if that was not done: a run may have been cut off before."""
        if self.contents.number and self.contents.last_digest is not None:
            with suppress(FileExistsError):
                self.storage.create(_head_name(self.contents.number), self.contents.last_digest.encode())

    def _read_head(self, number: int) -> str:
        """Return the SHA-256 of a manifest as it was written; empty if that is not known."""
        try:
            return self.storage.read(_head_name(number)).decode()
        except FileNotFoundError:
            return ""

    def find_unnamed(self, folder: str = DATA) -> list[str]:
        """Return the files that no manifest names and none will: what was cut off or replaced.

        None behind damage: a manifest that cannot be read may name them.
        """
        if self.damage:
            return []
        ours = f"{DATA}/{self.contents.number:08}/~"  # a later number may be another archiver's at this moment
        return [name for name in self.storage.list(folder) if name not in self.contents.files and name < ours]

    def delete_unnamed(self) -> None:
        """Delete what earlier attempts at the newest manifest have left."""
        self.storage.delete(self.find_unnamed(f"{DATA}/{self.contents.number:08}"))


def open_archive(url: str, *, may_be_new: bool = False, despite_damage: bool = False) -> Archive:
    """Return the archive at a place; raises ConfigurationError where there is none, DataLossError if it is damaged.

    With `despite_damage` a damaged manifest is left out and named in `damage`, and the others are read.
    """
    archive = Archive(Storage(url))
    heads = archive.storage.list(HEADS)  # first: the head of a manifest that comes between the two would miss it
    manifests = [name for name in archive.storage.list(MANIFESTS) if name.endswith(".json")]
    if not manifests and not may_be_new:
        raise ConfigurationError(f"there is no archive at {url}; `rollbus archive run` makes one")
    newest = max((_number_of(name) for name in (*manifests, *heads)), default=0)
    for number in range(1, newest + 1):
        name = _manifest_name(number)
        try:
            if name not in manifests:
                raise DataLossError(f"{name} of the archive {url} is gone; take it from a copy")
            archive.contents.add(archive.storage.read(name), f"{name} of the archive {url}")
        except DataLossError as error:
            if not despite_damage:
                raise
            archive.damage.append(str(error))
            archive.contents.skip_damaged()
    return archive


def require_same_log(archive: Archive, namespace: str, cluster: str) -> None:
    """Raise ConfigurationError if the archive is of another log: its offsets mean something else."""
    for last in archive.contents.manifests[-1:]:
        if (last.namespace, last.cluster) != (namespace, cluster):
            raise ConfigurationError(
                f"the archive {archive.url} is of {last.namespace}* on cluster {last.cluster}, not of {namespace}* on "
                f"{cluster}; give each log a place of its own"
            )


def total(files: Iterable[ArchivedFile]) -> tuple[int, int]:
    """Return the number of records and of bytes of files."""
    counted = list(files)
    return sum(file.records for file in counted), sum(file.bytes for file in counted)


def _manifest_name(number: int) -> str:
    return f"{MANIFESTS}/{number:08}.json"


def _head_name(number: int) -> str:
    return f"{HEADS}/{number:08}"


def _number_of(name: str) -> int:
    """Return the number of a manifest or of its head; 0 for a file of another name."""
    digits = name.rpartition("/")[2].removesuffix(".json")
    return int(digits) if digits.isdigit() else 0
