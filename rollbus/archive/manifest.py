"""Manifests: what each archiving added, in a chain, and what all of them together say that the archive holds. Pure.

A manifest names its files with their SHA-256, and the SHA-256 of the manifest before it. Nothing that it does not name
counts, so it is written last, and only if no other archiver has written one with its number.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from itertools import pairwise
from typing import Any, Literal

from rollbus.schemas.errors import DataLossError
from rollbus.schemas.ids import canonical_json

FORMAT = 1
"""Another number means that the files are read differently; a newer one is refused."""
Partition = tuple[str, int]
"""Topic without the namespace, and number."""
Purpose = Literal["run", "forget"]
"""The command that wrote a manifest."""


@dataclass(frozen=True, slots=True, order=True)
class ArchivedFile:
    """One Parquet file: the records of a partition from offset `begin` to before `end`, as far as there were any."""

    topic: str
    partition: int
    begin: int
    end: int
    path: str
    records: int
    bytes: int
    sha256: str
    first_ms: int
    last_ms: int


@dataclass(frozen=True, slots=True, order=True)
class ArchivedPartition:
    """A partition: which offsets are in the archive, and by which record a later run finds it again."""

    topic: str
    partition: int
    begin: int
    end: int
    last_offset: int = -1
    """Of the last record; −1 if there was none."""
    last_sha256: str = ""
    topic_id: str = ""
    """Given by the broker when the topic was made; empty in older manifests, and of a broker that gives none."""


@dataclass(frozen=True, slots=True, order=True)
class Missing:
    """Offsets that retention deleted before they were archived."""

    topic: str
    partition: int
    begin: int
    end: int

    def __str__(self) -> str:
        return f"{self.topic}[{self.partition}] {self.begin} … {self.end - 1}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """One link of the chain."""

    number: int
    """From 1, without a gap."""
    previous: str
    """SHA-256 of the manifest before; empty for the first."""
    namespace: str
    cluster: str
    """Kafka's id of the cluster: offsets of another one mean something else."""
    version: str
    written_at_ms: int
    purpose: Purpose
    files: tuple[ArchivedFile, ...] = ()
    replaced: tuple[str, ...] = ()
    """Paths of files that no longer count: forgotten episodes were in them."""
    partitions: tuple[ArchivedPartition, ...] = ()
    """Every partition, as the archive has it with this manifest."""
    missing: tuple[Missing, ...] = ()

    def to_bytes(self) -> bytes:
        """Return it as JSON with its own SHA-256 at the end."""
        plain = {"format": FORMAT, **asdict(self)}
        return json.dumps({**plain, "sha256": _digest(plain)}, indent=1).encode() + b"\n"


@dataclass(slots=True)
class Contents:
    """What an archive holds, by its manifests."""

    manifests: list[Manifest] = field(default_factory=list)
    number: int = 0
    """Of the newest manifest, damaged or not."""
    last_digest: str | None = ""
    """SHA-256 of the newest manifest; None if that is damaged, so the next one cannot be compared with it."""
    files: dict[str, ArchivedFile] = field(default_factory=dict)
    """By path, without those that were replaced."""
    missing: list[Missing] = field(default_factory=list)

    @property
    def partitions(self) -> Mapping[Partition, ArchivedPartition]:
        """Every partition, in order, as the newest manifest that can be read has it."""
        partitions = self.manifests[-1].partitions if self.manifests else ()
        return {(partition.topic, partition.partition): partition for partition in sorted(partitions)}

    def add(self, data: bytes, name: str) -> None:
        """Add the next manifest; raises DataLossError, with its name, if it is not what was written."""
        manifest = read_manifest(data, name)
        follows = self.last_digest is None or manifest.previous == self.last_digest
        if manifest.number != self.number + 1 or not follows:
            raise DataLossError(
                f"{name} does not follow manifest {self.number} of this archive: one of the two was altered or belongs "
                "to another archive; take both from a copy"
            )
        self.manifests.append(manifest)
        self.number += 1
        self.last_digest = hashlib.sha256(data).hexdigest()
        self.files |= {file.path: file for file in manifest.files}
        for path in manifest.replaced:
            self.files.pop(path, None)
        self.missing += manifest.missing

    def skip_damaged(self) -> None:
        """Leave out the next manifest: what it added is not known."""
        self.number, self.last_digest = self.number + 1, None

    def files_of(self, partition: Partition) -> list[ArchivedFile]:
        """Return a partition's files in the order of their offsets."""
        return sorted(file for file in self.files.values() if (file.topic, file.partition) == partition)


def read_manifest(data: bytes, name: str) -> Manifest:
    """Return a manifest; raises DataLossError, with its name, for one that is not as it was written."""
    try:
        plain: dict[str, Any] = json.loads(data)
        digest, form = plain.pop("sha256"), plain["format"]
        if form > FORMAT:
            raise DataLossError(f"{name} has format {form}, and this rollbus reads {FORMAT}; take a newer rollbus")
        if digest != _digest(plain):
            raise ValueError("its SHA-256 is another one")
        parts: dict[str, type[Any]] = {"files": ArchivedFile, "partitions": ArchivedPartition, "missing": Missing}
        for part, kind in parts.items():
            plain[part] = tuple(kind(**entry) for entry in plain[part])
        plain["replaced"] = tuple(plain["replaced"])
        return Manifest(**{field.name: plain[field.name] for field in fields(Manifest)})
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataLossError(f"{name} was altered or is cut ({error}); take it from a copy of the archive") from error


def check_order(files: Sequence[ArchivedFile]) -> None:
    """Raise DataLossError where two files of a partition claim the same offsets."""
    for before, after in pairwise(files):
        if after.begin < before.end:
            raise DataLossError(f"{before.path} and {after.path} hold the same offsets; take both from a copy")


def missing_between(missing: Iterable[Missing], partitions: Mapping[Partition, ArchivedPartition]) -> list[Missing]:
    """Return what is missing after the beginning of its partition: a restored log would have a hole there."""
    return [hole for hole in missing if hole.begin > partitions[hole.topic, hole.partition].begin]


def _digest(plain: Mapping[str, Any]) -> str:
    return hashlib.sha256(canonical_json(plain).encode()).hexdigest()
