"""`rollbus import`: files → the store → the broker, in two steps, each of which goes on where it was.

First all files are read into the store, then trace by trace is sent: parts of one trace may lie anywhere in the files.
Progress is committed with what it stands for, so a kill costs the work since the last commit and doubles nothing.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rollbus.producers.imports.documents import FilePosition, TornFileError, read_documents
from rollbus.producers.imports.formats.formats import FORMATS, Format
from rollbus.producers.imports.formats.trace import ForeignDocumentError, TracePart
from rollbus.producers.imports.sending import BATCH_TRACES, Sender, TraceConverter, send_traces
from rollbus.producers.imports.store import Store
from rollbus.producers.sending.sink import EventSink
from rollbus.schemas.errors import RollbusError, UnavailableError
from rollbus.schemas.wall_clock import wall_clock_ms

COMMIT_DOCUMENTS = 2000
Progress = Callable[[int, int], None]
"""Called with how much is done, and of how much."""


@dataclass(slots=True, kw_only=True)
class Import:
    """One import of some files."""

    files: Sequence[Path]
    converter: TraceConverter
    store: Store
    skip_bad: bool = False
    """Whether a document that cannot be read is counted and left out; else it ends the import."""
    bad: list[str] = field(default_factory=list)
    """The first reasons of those that were left out."""

    def read(self, progress: Progress) -> None:
        """Read the files into the store; raises RollbusError with file, line and reason. What was read is kept."""
        sizes = [path.stat().st_size for path in self.files]
        for index, path in enumerate(self.files):
            before = sum(sizes[:index])
            self._read_file(path, lambda done, before=before: progress(before + done, sum(sizes)))  # type: ignore[misc]
        counts = self.store.counts()
        if not counts["documents"] and not counts["documents_skipped"]:
            raise RollbusError(f"{', '.join(map(str, self.files))}: there is no document in it")

    def _read_file(self, path: Path, progress: Callable[[int], None]) -> None:
        name = str(path.resolve())
        stored_position = self.store.position(name)
        position = FilePosition(**stored_position) if stored_position is not None else None
        modified_ns = path.stat().st_mtime_ns
        since = 0
        try:
            while True:
                try:
                    for after, document in read_documents(path, position, progress):
                        self._keep(path, after, document, modified_ns)
                        position, since = after, since + 1
                        if since % COMMIT_DOCUMENTS == 0:
                            self._commit(name, position)
                    break
                except TornFileError as error:
                    if not self.skip_bad or error.after is None:
                        raise self._refusal(path, error) from error
                    self._skip(path, error.line, error.reason)
                    position = error.after
        except UnavailableError:
            raise  # the store has undone what was not committed
        except BaseException:
            self._commit(name, position)
            raise
        else:
            self._commit(name, position)

    def _commit(self, name: str, position: FilePosition | None) -> None:
        if position is not None:
            self.store.set_position(name, position.fields())
        self.store.commit()

    def _keep(self, path: Path, after: FilePosition, document: Any, modified_ns: int) -> None:
        try:
            parts = self._split(document, modified_ns)
        except (ForeignDocumentError, TypeError, ValueError, AttributeError) as error:
            reason = f"not of format {self.converter.format.name}: {error}{self._suggestion(document)}"
            if not self.skip_bad:
                raise self._refusal(path, TornFileError(after.line, reason, after=after)) from error
            self._skip(path, after.line, reason)
            return
        self.store.add(parts, wall_clock_ms())
        self.store.count({"documents": 1})

    def _split(self, document: Any, modified_ns: int) -> list[TracePart]:
        if not isinstance(document, dict):
            raise ForeignDocumentError(f"it is a {type(document).__name__}, not an object")
        dated_document = (
            document if self.converter.format.has_times else {**document, "read_at": modified_ns // 1_000_000}
        )
        return list(self.converter.format.split(dated_document))

    def _suggestion(self, document: Any) -> str:
        """Name the formats that a document may be of instead."""
        names = [
            trace_format.name
            for trace_format in FORMATS.values()
            if trace_format is not self.converter.format and _is_of(document, trace_format)
        ]
        return f"; it looks like {' or '.join(names)}" if names else ""

    def _skip(self, path: Path, line: int, reason: str) -> None:
        self.store.count({"documents_skipped": 1})
        if len(self.bad) < 5:
            self.bad.append(f"{path} line {line}: {reason}")

    def _refusal(self, path: Path, error: TornFileError) -> RollbusError:
        others = (
            ", or add --skip-bad to leave out what cannot be read"
            if error.after
            else ". --skip-bad does not help, since nothing can be read after this place"
        )
        return RollbusError(
            f"{path} line {error.line}: {error.reason}. What was read before it is kept, and nothing was sent: "
            f"{error.remedy} and give the same command again{others}"
        )

    async def send(self, make_sink: Callable[[], EventSink], progress: Progress) -> Counter[str]:
        """Send what was read, and return all counts; raises UnavailableError. What was sent is not sent again."""
        sender = Sender(make_sink)
        try:
            for traces in self._find_owed_batches(progress):
                await send_traces(self.store, self.converter, sender, traces)
            counts = self.store.counts()
            await sender.send([self.converter.report(counts, wall_clock_ms())])
            return counts
        finally:
            await sender.close()

    def decide(self, progress: Progress) -> Counter[str]:
        """Return the counts that `send` would, and send nothing."""
        for traces in self._find_owed_batches(progress):
            for _, done in self.converter.batches(self.store, traces):
                self.store.mark_sent(done)
        return self.store.counts()

    def _find_owed_batches(self, progress: Progress) -> Iterator[list[str]]:
        total, done, last = self.store.count_owed(), 0, 0
        while owed_traces := self.store.find_owed(BATCH_TRACES, last):
            progress(done, total)
            yield [trace for _, trace in owed_traces]
            done, last = done + len(owed_traces), owed_traces[-1][0]


def _is_of(document: Any, format_: Format) -> bool:
    try:
        return any(True for _ in format_.split(document))
    except Exception:  # it is of another format, in whichever way
        return False
