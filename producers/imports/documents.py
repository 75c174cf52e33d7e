"""Files → their documents, one at a time, each with the place after it: JSONL, a JSON array, or single JSON objects.

Memory holds one document. A file may be compressed with gzip. What is not JSON, or torn, is a `TornFileError` with
its line; all documents before it were given.
"""

import codecs
import gzip
import hashlib
import json
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any, Literal, cast

from rollbus.schemas.errors import InvalidRecordError, RollbusError
from rollbus.schemas.ids import parse_json

TORN_COMPRESSION = (EOFError, OSError, zlib.error)
"""What a file raises whose compressed bytes are cut or altered; `gzip.BadGzipFile` is an OSError."""
MAX_DOCUMENT_BYTES = 64 * 1024 * 1024
CHUNK_BYTES = 256 * 1024
ENDS = (".json", ".jsonl", ".ndjson")
BETWEEN = " \t\r\n,"
Form = Literal["lines", "array", "objects"]
"""A document per line, the elements of one array, or objects one after another that go over lines."""


class TornFileError(InvalidRecordError):
    """A file is not JSON from some line on."""

    def __init__(
        self, line: int, reason: str, *, after: "FilePosition | None" = None, remedy: str = "mend the file"
    ) -> None:
        """Say where, and what to do; `after` is where reading can go on, if it can."""
        super().__init__(reason)
        self.line, self.reason, self.after, self.remedy = line, reason, after, remedy


@dataclass(frozen=True, slots=True)
class FilePosition:
    """How far a file was read."""

    offset: int = 0
    """Bytes, of what is decompressed."""
    line: int = 0
    """Lines before it."""
    form: Form = "lines"
    last_bytes: int = 0
    last_hash: str = ""
    """Length and hash of the document before it: another one there means that the file has changed."""

    def fields(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        return asdict(self)


def find_files(paths: list[Path]) -> list[Path]:
    """Return the files, and those in the folders below them, by name."""
    files = []
    for path in paths:
        if not path.is_file() and not path.is_dir():
            raise RollbusError(
                f"{path} is not a file or a folder: an import reads its files again after a kill, so save what comes "
                "through a pipe to a file first"
            )
        inner = (
            sorted(file for file in path.rglob("*") if file.is_file() and _is_data(file)) if path.is_dir() else [path]
        )
        if not inner:
            raise RollbusError(f"{path} has no file that ends in {', '.join(ENDS)}, or in these and .gz")
        files += inner
    return files


def _is_data(path: Path) -> bool:
    return path.name.removesuffix(".gz").endswith(ENDS)


def read_documents(
    path: Path, start: FilePosition | None, progress: Callable[[int], None]
) -> Iterator[tuple[FilePosition, Any]]:
    """Yield each document with the position after it; raises TornFileError, and RollbusError for a file that has
    changed. `progress` is called with how many bytes of the file itself were read.
    """
    with path.open("rb") as raw, _open_decompressed(raw) as stream:
        start = start or _begin(stream)
        _check_unchanged(path, stream, start)
        documents = _read_lines(stream, start) if start.form == "lines" else _read_values(stream, start)
        try:
            for count, document in enumerate(documents):
                if count % 64 == 0:
                    progress(raw.tell())
                yield document
        except TORN_COMPRESSION as error:
            raise TornFileError(start.line + 1, f"its compression is torn ({error})") from error
        progress(raw.tell())


def _open_decompressed(raw: IO[bytes]) -> IO[bytes]:
    magic = raw.read(2)
    raw.seek(0)
    return cast(IO[bytes], gzip.GzipFile(fileobj=raw)) if magic == b"\x1f\x8b" else raw


def _begin(stream: IO[bytes]) -> FilePosition:
    """Say which form a file has, by its first lines that are not blank."""
    try:
        while (line := stream.readline(MAX_DOCUMENT_BYTES)) and not line.strip():
            continue
        first = line.strip().removeprefix(codecs.BOM_UTF8)
        second = stream.readline(CHUNK_BYTES).strip()
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise TornFileError(1, f"its compression is torn ({error})") from error
    encoding = json.detect_encoding(first).upper().replace("-LE", "LE").replace("-BE", "BE")  # as iconv names them
    if encoding != "UTF-8":
        remedy = f"convert it with `iconv -f {encoding} -t UTF-8`"
        raise TornFileError(1, f"it is not UTF-8, but looks like {encoding}", remedy=remedy)
    if first.startswith(b"["):
        return FilePosition(form="array")
    with suppress(ValueError):
        parse_json(first)
        return FilePosition()
    is_object = first.startswith(b"{") and second and not second.startswith(b"{")
    return FilePosition(form="objects" if is_object else "lines")


def _check_unchanged(path: Path, stream: IO[bytes], start: FilePosition) -> None:
    stream.seek(start.offset - start.last_bytes)
    if start.last_bytes and _hash(stream.read(start.last_bytes)) != start.last_hash:
        raise RollbusError(
            f"{path} has changed since line {start.line} of it was read; `--again` forgets that, and begins again"
        )


def _read_lines(stream: IO[bytes], start: FilePosition) -> Iterator[tuple[FilePosition, Any]]:
    offset, number = start.offset, start.line
    while line := stream.readline(MAX_DOCUMENT_BYTES + 1):
        if len(line) > MAX_DOCUMENT_BYTES:
            raise TornFileError(number + 1, f"the line is longer than {MAX_DOCUMENT_BYTES} bytes")
        offset, number = offset + len(line), number + 1
        text = line.strip().removeprefix(codecs.BOM_UTF8) if number == 1 else line.strip()
        if not text:
            continue
        after = FilePosition(offset, number, "lines", len(line), _hash(line))
        try:
            document = parse_json(text)
        except ValueError as error:
            is_torn = text.startswith(b"{") and not line.endswith(b"\n")
            reason = "it is torn: the file ends within it" if is_torn else f"it is not JSON ({_reason(error)})"
            raise TornFileError(number, reason, after=None if is_torn else after) from error
        yield after, document


def _read_values(stream: IO[bytes], start: FilePosition) -> Iterator[tuple[FilePosition, Any]]:
    decoder, text = json.JSONDecoder(), codecs.getincrementaldecoder("utf-8")()
    buffer, offset, line, size = "", start.offset, start.line, CHUNK_BYTES
    between = BETWEEN if start.offset else BETWEEN + "[\ufeff"
    while True:
        buffer, skipped = (remainder := buffer.lstrip(between)), buffer[: len(buffer) - len(remainder)]
        offset, line = offset + len(skipped.encode()), line + skipped.count("\n")
        if start.form == "array" and buffer.startswith("]"):
            _require_end(buffer[1:], stream, line)
            return
        reason = "it ends"
        try:
            value, end = decoder.raw_decode(buffer)
        except RecursionError:
            raise TornFileError(line + 1, "the document that begins there is nested too deep") from None
        except ValueError as error:
            end, reason = 0, _reason(error)
        if end:
            raw = buffer[:end].encode()
            offset, line, buffer, size, between = (
                offset + len(raw),
                line + raw.count(b"\n"),
                buffer[end:],
                CHUNK_BYTES,
                BETWEEN,
            )
            yield FilePosition(offset, line, start.form, len(raw), _hash(raw)), value
        elif len(buffer) > MAX_DOCUMENT_BYTES:
            raise TornFileError(line + 1, f"the document that begins there is longer than {MAX_DOCUMENT_BYTES} bytes")
        elif chunk := stream.read(size):
            size = min(size * 2, MAX_DOCUMENT_BYTES)
            try:
                buffer += text.decode(chunk)
            except UnicodeDecodeError as error:
                raise TornFileError(line + 1, f"a document after it is not UTF-8 ({error.reason})") from error
        elif buffer or text.getstate()[0] or start.form == "array":
            raise TornFileError(line + 1, f"the document that begins there is torn, or not JSON ({reason})")
        else:
            return


def _require_end(rest: str, stream: IO[bytes], line: int) -> None:
    """Raise TornFileError where something comes after the array: it would be left out without a word."""
    tail = rest.encode()
    while not tail.strip():
        line += tail.count(b"\n")
        if not (tail := stream.read(CHUNK_BYTES)):
            return
    line += tail[: len(tail) - len(tail.lstrip())].count(b"\n")
    raise TornFileError(
        line + 1, "something comes after the end of the array", remedy="give each array a file of its own"
    )


def _reason(error: ValueError) -> str:
    return error.msg if isinstance(error, json.JSONDecodeError) else str(error)


def _hash(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:32]
