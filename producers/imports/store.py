"""Parts of traces on disk, until their trace is whole and sent; in one SQLite file, so memory stays small.

A part that comes twice is kept once; what another principal brings under its key is counted, and left out. When a trace
is sent, the store forgets its parts and keeps their keys. So it knows a part that comes again. A part that is new by
then is late, and only counted, unless it is a score, which is sent by itself.
"""

import json
import sqlite3
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rollbus.producers.imports.formats.trace import TracePart
from rollbus.schemas.errors import ConfigurationError, UnavailableError

PAGE_BYTES = 4096
CACHE_KIB = 64 * 1024
DAY_MS = 86_400_000
KEPT_MS = 7 * DAY_MS
"""How long the keys of a trace that was sent are kept, so that what comes late, or again, is known."""
SCHEMA = """
CREATE TABLE IF NOT EXISTS traces (
  number INTEGER PRIMARY KEY, trace TEXT NOT NULL UNIQUE, changed_ms INTEGER NOT NULL, ended INTEGER NOT NULL,
  bytes INTEGER NOT NULL, sent INTEGER NOT NULL DEFAULT 0, owed INTEGER NOT NULL DEFAULT 1
);
CREATE INDEX IF NOT EXISTS owed ON traces (changed_ms) WHERE owed = 1;
CREATE TABLE IF NOT EXISTS parts (
  number INTEGER PRIMARY KEY, trace TEXT NOT NULL, kind TEXT NOT NULL, id TEXT NOT NULL, is_score INTEGER NOT NULL,
  principal TEXT NOT NULL, body BLOB
);
CREATE UNIQUE INDEX IF NOT EXISTS keys ON parts (trace, kind, id);
CREATE TABLE IF NOT EXISTS counts (name TEXT PRIMARY KEY, number INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS positions (file TEXT PRIMARY KEY, position TEXT NOT NULL);
"""


class Store:
    """One file; used by one thread of one process."""

    def __init__(self, path: Path | None, *, max_bytes: int | None = None) -> None:
        """Open or create it, of at most so many bytes; None is a temporary file. Raises ConfigurationError."""
        self._path, self._max_bytes = path, max_bytes
        self._has_removed = True
        """Whether parts were removed since the write-ahead file was emptied; an earlier process may have been killed
        before it could."""
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            path.touch(mode=0o600)
        self._db = sqlite3.connect("" if path is None else path, isolation_level=None, timeout=0.5)
        try:
            self._db.execute("PRAGMA locking_mode = EXCLUSIVE")
            self._db.execute("PRAGMA journal_mode = WAL")
            self._db.execute("PRAGMA synchronous = NORMAL")
            self._db.execute("PRAGMA secure_delete = ON")
            self._db.execute(f"PRAGMA cache_size = -{CACHE_KIB}")
            self._db.executescript(SCHEMA)
            self._db.execute("BEGIN")
        except sqlite3.DatabaseError as error:
            self._db.close()
            if "locked" in str(error):
                raise ConfigurationError(f"{path} is in use: another process imports these files, or serves") from error
            raise ConfigurationError(f"{path} cannot be read ({error}); remove it to begin again") from error

    def add(self, parts: Iterable[TracePart], now_ms: int) -> None:
        """Keep parts, and count those that came before or too late. Raises UnavailableError where there is no room."""
        counts: Counter[str] = Counter()
        with self._changing():
            if self._max_bytes is not None and self._used_bytes() >= self._max_bytes:
                raise sqlite3.OperationalError(f"it holds {self._max_bytes} bytes; is the broker away?")
            for part in parts:
                self._add(part, now_ms, counts)
            self.count(counts)

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """Undo what was not committed, and raise UnavailableError, where the disk takes no more."""
        try:
            yield
        except sqlite3.OperationalError as error:
            self._roll_back()
            self._db.execute("BEGIN")
            raise UnavailableError(f"{self._path or 'the temporary store'} takes no more: {error}") from error

    def _roll_back(self) -> None:
        if self._db.in_transaction:  # SQLite itself undoes some
            self._db.execute("ROLLBACK")

    def _used_bytes(self) -> int:
        (pages,), (free,) = (self._db.execute(f"PRAGMA {name}_count").fetchone() for name in ("page", "freelist"))
        return int(pages - free) * PAGE_BYTES

    def _add(self, part: TracePart, now_ms: int, counts: Counter[str]) -> None:
        row = self._db.execute("SELECT sent FROM traces WHERE trace = ?", (part.trace_id,)).fetchone()
        is_late = row is not None and row[0] and not part.is_score
        text = json.dumps(part.document, separators=(",", ":")).encode()
        body = None if is_late else zlib.compress(text, 1)
        values = (part.trace_id, part.kind, part.id, part.is_score, part.principal, body)
        is_new = self._db.execute(
            "INSERT OR IGNORE INTO parts (trace, kind, id, is_score, principal, body) VALUES (?, ?, ?, ?, ?, ?)", values
        ).rowcount
        if is_new:
            counts["parts_late" if is_late else "parts"] += 1
        else:
            counts["parts_repeated" if self._principal_of(part) == part.principal else "parts_of_others"] += 1
        if is_new and not is_late:
            self._db.execute(
                "INSERT INTO traces (trace, changed_ms, ended, bytes) VALUES (?, ?, ?, ?) ON CONFLICT (trace) "
                "DO UPDATE SET changed_ms = excluded.changed_ms, ended = max(ended, excluded.ended), "
                "bytes = bytes + excluded.bytes, owed = 1",
                (part.trace_id, now_ms, part.is_last, len(text)),
            )

    def _principal_of(self, part: TracePart) -> str:
        """Return who brought the part that is known under this key."""
        key = (part.trace_id, part.kind, part.id)
        row = self._db.execute("SELECT principal FROM parts WHERE trace = ? AND kind = ? AND id = ?", key).fetchone()
        return str(row[0])

    def find_owed(self, limit: int, after: int = 0) -> list[tuple[int, str]]:
        """Return number and id of traces with something to be sent, after this number, in the order they came in."""
        sql = "SELECT number, trace FROM traces WHERE owed = 1 AND number > ? ORDER BY number LIMIT ?"
        return self._db.execute(sql, (after, limit)).fetchall()

    def find_due(self, *, now_ms: int, settle_ms: int, quiet_ms: int, limit: int) -> list[str]:
        """Return traces that ended, or were sent before, and got nothing for `settle_ms`; or nothing for `quiet_ms`."""
        rows = self._db.execute(
            "SELECT trace FROM traces WHERE owed = 1 AND changed_ms <= ? AND (ended OR sent OR changed_ms <= ?) "
            "ORDER BY changed_ms, number LIMIT ?",
            (now_ms - settle_ms, now_ms - quiet_ms, limit),
        )
        return [trace for (trace,) in rows]

    def parts_of(self, trace_id: str) -> list[TracePart]:
        """Return what is to be sent of a trace, in an order that does not depend on how it came."""
        rows = self._db.execute(
            "SELECT kind, id, is_score, principal, body FROM parts "
            "WHERE trace = ? AND body IS NOT NULL ORDER BY kind, id",
            (trace_id,),
        )
        return [
            TracePart(
                trace_id, kind, key, json.loads(zlib.decompress(body)), is_score=bool(is_score), principal=principal
            )
            for kind, key, is_score, principal, body in rows
        ]

    def bytes_of(self, trace_id: str) -> int:
        """Return how large the parts of a trace are as JSON, uncompressed."""
        (size,) = self._db.execute("SELECT bytes FROM traces WHERE trace = ?", (trace_id,)).fetchone()
        return int(size)

    def mark_sent(self, trace_ids: Sequence[str]) -> None:
        """Forget the parts of these traces, and keep their keys."""
        rows = [(trace_id,) for trace_id in trace_ids]
        with self._changing():
            self._db.executemany("UPDATE parts SET body = NULL WHERE trace = ? AND body IS NOT NULL", rows)
            first_time = self._db.executemany("UPDATE traces SET sent = 1 WHERE trace = ? AND sent = 0", rows).rowcount
            self._db.executemany("UPDATE traces SET owed = 0, bytes = 0 WHERE trace = ?", rows)
            self.count({"traces_sent": max(0, first_time)})
        self._has_removed = True

    def forget_sent(self, before_ms: int) -> None:
        """Forget the traces that were sent and got nothing since. Raises UnavailableError where there is no room."""
        is_old = "sent = 1 AND owed = 0 AND changed_ms < ?"
        with self._changing():
            self._db.execute(
                f"DELETE FROM parts WHERE trace IN (SELECT trace FROM traces WHERE {is_old})", (before_ms,)
            )
            self._db.execute(f"DELETE FROM traces WHERE {is_old}", (before_ms,))

    def count(self, counts: Mapping[str, int]) -> None:
        """Add to the counts. Raises UnavailableError where there is no room."""
        with self._changing():
            self._db.executemany(
                "INSERT INTO counts VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET number = number + excluded.number",
                list(counts.items()),
            )

    def counts(self) -> Counter[str]:
        """Return all counts, over all starts."""
        return Counter(dict(self._db.execute("SELECT name, number FROM counts").fetchall()))

    def count_owed(self) -> int:
        """Return how many traces have something to be sent."""
        (owed,) = self._db.execute("SELECT count(*) FROM traces WHERE owed = 1").fetchone()
        return int(owed)

    def position(self, file: str) -> Mapping[str, Any] | None:
        """Return how far a file was read."""
        row = self._db.execute("SELECT position FROM positions WHERE file = ?", (file,)).fetchone()
        return None if row is None else json.loads(row[0])

    def set_position(self, file: str, position: Mapping[str, Any]) -> None:
        """Remember how far a file was read. Raises UnavailableError where there is no room."""
        with self._changing():
            self._db.execute("INSERT OR REPLACE INTO positions VALUES (?, ?)", (file, json.dumps(position)))

    def commit(self) -> None:
        """Make what was added and marked survive a kill; raises UnavailableError where the disk is full.

        After parts were removed, the write-ahead file is emptied, too: else their texts would stay in it.
        """
        with self._changing():
            self._db.execute("COMMIT")
            if self._has_removed:
                self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
                self._has_removed = False
            self._db.execute("BEGIN")

    def close(self, *, remove: bool = False) -> None:
        """Close it without what was not committed; `remove` deletes the file."""
        self._roll_back()
        self._db.close()
        if remove and self._path is not None:
            for end in ("", "-wal", "-shm"):
                self._path.with_name(self._path.name + end).unlink(missing_ok=True)
