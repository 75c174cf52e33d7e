"""Records on disk while no broker takes them: segment files of framed records, written and read in order.

    frame = length (u32), CRC-32 (u32), then timestamp (i64), lengths of topic (u16) and key (u32), topic, key, value

A segment is deleted only after all of it was acknowledged. A torn tail (the process died while writing) is cut off
when the segment is read. Each process writes in a folder of its own, under a lock; folders whose process is gone are
taken over, and deleted once they are empty, by the process that holds their lock. Only their owner can read the files.
"""

import contextlib
import fcntl
import os
import re
import struct
import time
import zlib
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from rollbus.producers.sending.sink import Outbound
from rollbus.schemas.errors import UnavailableError

SEGMENT_BYTES = 4 * 1024 * 1024
"""What a restart sends a second time is at most one segment."""
OPEN_S, OPEN_RETRY_S = 1.0, 0.01
"""How long another process that has taken a new folder for one that was left may hold it, and how often to look."""
_FRAME = struct.Struct(">II")
_HEAD = struct.Struct(">qHI")
_TOPIC = re.compile(rb"[a-zA-Z0-9._-]{1,249}")
"""A name that Kafka takes."""
_LOCK = "lock"
_SUFFIX = ".segment"


class Spool:
    """The segments of one process, oldest first."""

    def __init__(self, folder: Path, *, owner: str, quota_bytes: int, fsync: bool = True) -> None:
        """Open a folder for `owner` below `folder`, and take over what processes that are gone have left; raises
        OSError.
        """
        self._folder, self._quota_bytes, self._fsync = folder / owner, quota_bytes, fsync
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._locks = [_make_locked_folder(self._folder)]
        self._segments: deque[Path] = deque(sorted(self._folder.glob(f"*{_SUFFIX}")))
        self.torn_bytes = 0
        """Bytes cut off torn tails, of frames without a topic, and of files that another program deleted, in all."""
        self._adopt(folder)
        self._sizes = {path: path.stat().st_size for path in self._segments}
        self._number = int(max((path.stem for path in self._folder.glob(f"*{_SUFFIX}")), default="0"))
        self._descriptor: int | None = None
        """Of the segment that is written, which is the newest; None where the next record begins one."""
        self._written_bytes = 0

    def _adopt(self, folder: Path) -> None:
        """Take the segments of every folder whose lock is free, in front of our own."""
        for other in sorted(folder.iterdir()):
            if other == self._folder or not other.is_dir():
                continue
            try:
                lock = _lock(other)
            except OSError:  # its process is alive
                continue
            self._locks.append(lock)
            segments = sorted(other.glob(f"*{_SUFFIX}"))
            self._segments.extendleft(reversed(segments))
            if not segments:
                _remove_folder(other)
                self._locks.remove(lock)
                os.close(lock)

    @property
    def size_bytes(self) -> int:
        """Bytes on disk."""
        return sum(self._sizes.values())

    def __bool__(self) -> bool:
        """Whether anything waits."""
        return bool(self._segments)

    def append(self, records: Sequence[Outbound]) -> None:
        """Write records behind all others; all or none. Raises UnavailableError where quota or disk is full."""
        data = b"".join(map(_to_frame, records))
        if self.size_bytes + len(data) > self._quota_bytes:
            raise UnavailableError(f"the spool {self._folder} is full: {self._quota_bytes} bytes")
        try:
            self._write(data)
        except OSError as error:
            self._cut_torn_tail()
            raise UnavailableError(f"the spool {self._folder} cannot be written: {error}") from error

    def _write(self, data: bytes) -> None:
        if self._descriptor is None:
            self._number += 1
            path = self._folder / f"{self._number:012d}{_SUFFIX}"
            if not self._folder.exists():  # another program has deleted it, and the file of its lock
                self._folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                self._locks.append(_make_locked_folder(self._folder))
            self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            self._segments.append(path)
            self._sizes[path] = self._written_bytes = 0
        view = memoryview(data)
        while view:
            view = view[os.write(self._descriptor, view) :]
        if self._fsync:
            os.fsync(self._descriptor)
        self._written_bytes += len(data)
        self._sizes[self._segments[-1]] = self._written_bytes
        if self._written_bytes >= SEGMENT_BYTES:
            self._seal()

    def _cut_torn_tail(self) -> None:
        """Cut off what half arrived on disk."""
        if self._descriptor is None:
            return
        try:
            os.ftruncate(self._descriptor, self._written_bytes)
            os.lseek(self._descriptor, self._written_bytes, os.SEEK_SET)
        except OSError:
            self._seal()  # the torn tail is cut when it is read

    def _seal(self) -> None:
        """Let the next record begin a segment."""
        # Forgotten first: a fork in another thread must not find a descriptor here that is closed already.
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)

    def read_oldest(self) -> list[Outbound]:
        """Return the records of the oldest segment, which takes no more from now on, and cut off its torn tail.

        Bytes that are not a record are counted in `torn_bytes`. Raises OSError where the file cannot be read.
        """
        if not self._segments:
            return []
        path = self._segments[0]
        if len(self._segments) == 1:
            self._seal()
        try:
            data = path.read_bytes()
        except FileNotFoundError:  # another program has emptied the folder
            self.torn_bytes += self._sizes[path]
            self._sizes[path] = 0
            return []
        frames = list(_frames(data))
        whole = frames[-1].end if frames else 0
        if whole < len(data):
            os.truncate(path, whole)
            self._sizes[path] = whole
        records = [frame.record for frame in frames if frame.record is not None]
        self.torn_bytes += len(data) - sum(len(_to_frame(record)) for record in records)
        return records

    def discard_oldest(self) -> None:
        """Delete the oldest segment: all of it is with the broker."""
        path = self._segments.popleft()
        self._sizes.pop(path, None)
        path.unlink(missing_ok=True)
        if path.parent != self._folder and not any(other.parent == path.parent for other in self._segments):
            _remove_folder(path.parent)

    def after_fork(self) -> None:
        """Let go, in a child process, of what it inherits: the folder stays the parent's, and is free once the parent
        is gone, however long the child lives.
        """
        inherited = [*self._locks, *([] if self._descriptor is None else [self._descriptor])]
        self._locks, self._segments, self._descriptor = [], deque(), None
        for descriptor in inherited:
            with contextlib.suppress(OSError):  # the parent's thread was about to forget that it has closed it
                os.close(descriptor)

    def close(self) -> None:
        """Let go of the files; the folder goes too where nothing waits."""
        self._seal()
        if not self._segments:
            _remove_folder(self._folder)
        locks, self._locks = self._locks, []
        for lock in locks:
            os.close(lock)


def _make_locked_folder(folder: Path) -> int:
    """Make the folder and return a descriptor that holds its lock; raises OSError.

    Before it is locked it looks like one that was left: another process that opens now may delete it.
    """
    deadline = time.monotonic() + OPEN_S
    while True:
        try:
            folder.mkdir(mode=0o700, exist_ok=True)
            return _lock(folder)
        except (FileNotFoundError, FileExistsError, BlockingIOError):
            if time.monotonic() >= deadline:
                raise
        time.sleep(OPEN_RETRY_S)


def _lock(folder: Path) -> int:
    """Return a descriptor that holds the folder's lock; raises OSError where another process has it or has deleted the
    folder.
    """
    path = folder / _LOCK
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not os.path.samestat(os.fstat(descriptor), path.stat()):
            raise FileNotFoundError(f"{path} was deleted before it was locked")
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _remove_folder(folder: Path) -> None:
    try:
        (folder / _LOCK).unlink(missing_ok=True)
        folder.rmdir()
    except OSError:  # another program has put a file there
        return


def _to_frame(record: Outbound) -> bytes:
    topic = record.topic.encode()
    body = b"".join((_HEAD.pack(record.timestamp_ms, len(topic), len(record.key)), topic, record.key, record.value))
    return _FRAME.pack(len(body), zlib.crc32(body)) + body


class _Frame(NamedTuple):
    record: Outbound | None
    """None where it names no topic: no broker would ever take it."""
    end: int


def _frames(data: bytes) -> Iterator[_Frame]:
    """Yield the frames up to the first that is not whole."""
    position = 0
    while position + _FRAME.size <= len(data):
        length, checksum = _FRAME.unpack_from(data, position)
        body = data[position + _FRAME.size : position + _FRAME.size + length]
        if len(body) < length or length < _HEAD.size or zlib.crc32(body) != checksum:
            return
        position += _FRAME.size + length
        timestamp_ms, topic_size, key_size = _HEAD.unpack_from(body)
        key_start = _HEAD.size + topic_size
        value_start = key_start + key_size
        topic = body[_HEAD.size : key_start]
        if _TOPIC.fullmatch(topic) is None or value_start > len(body):
            yield _Frame(None, position)
        else:
            record = Outbound(topic.decode(), body[key_start:value_start], body[value_start:], timestamp_ms)
            yield _Frame(record, position)
