"""An import of files into a sink in memory: what a kill, a torn file and a second import leave."""

import gzip
import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rollbus.producers.imports import documents, import_files
from rollbus.producers.imports.documents import find_files
from rollbus.producers.imports.formats.formats import FORMATS
from rollbus.producers.imports.import_files import Import
from rollbus.producers.imports.sending import TraceConverter
from rollbus.producers.imports.store import Store
from rollbus.producers.sending.sink import MemorySink, Outbound
from rollbus.schemas.errors import ConfigurationError, RollbusError, UnavailableError
from rollbus.schemas.records.events import EpisodeStarted, TurnRecorded
from tests.producers.imports.formats.reading import make_span, request_of

QUIET: Callable[[int, int], None] = lambda done, total: None  # noqa: E731


def row(trace: int, kind: str = "GENERATION", **fields: Any) -> dict[str, Any]:
    times = {"startTime": f"2026-03-01T10:{trace // 60:02}:{trace % 60:02}Z"}
    standard = {"name": "ask", "input": f"question {trace}", "output": f"answer {trace}", "model": "m"}
    return {"id": f"o-{trace}-{kind}", "traceId": f"t-{trace}", "type": kind, **times, **standard, **fields}


def write(path: Path, rows: list[Any], *, form: str = "lines") -> Path:
    text = json.dumps(rows, indent=1) if form == "array" else "".join(json.dumps(row) + "\n" for row in rows)
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


class Bench:
    """Imports of one set of files, one after another, over one store and into one sink."""

    def __init__(self, folder: Path, *files: Path, format_name: str = "langfuse", **options: Any) -> None:
        self.path, self.files, self.format_name, self.options = folder / "store.sqlite", files, format_name, options
        self.sink = MemorySink()

    def make(self) -> Import:
        converter = TraceConverter(format=FORMATS[self.format_name], producer="p")
        return Import(files=find_files(list(self.files)), converter=converter, store=Store(self.path), **self.options)

    async def run(self) -> dict[str, int]:
        work = self.make()
        try:
            work.read(QUIET)
            return await work.send(lambda: self.sink, QUIET)
        finally:
            work.store.close()

    def keys(self) -> list[tuple[str, bytes]]:
        """The records that were sent, but for reports."""
        return [(outbound.topic, outbound.value) for outbound in self.sink.sent if "reports" not in outbound.topic]

    def answers(self) -> list[str | None]:
        return [record.completion.content for record in self.sink.records() if isinstance(record, TurnRecorded)]


@pytest.mark.parametrize(
    ("name", "form"), [("a.jsonl", "lines"), ("a.json", "array"), ("a.jsonl.gz", "lines"), ("a.json.gz", "array")]
)
async def test_each_form_of_a_file_gives_the_same_records(tmp_path: Path, name: str, form: str) -> None:
    rows = [row(trace) for trace in range(5)]
    plain = Bench(tmp_path / "1", write(tmp_path / "plain.jsonl", rows))
    other = Bench(tmp_path / "2", write(tmp_path / name, rows, form=form))
    counts = await plain.run()
    assert await other.run() == counts
    assert other.keys() == plain.keys()
    assert plain.answers() == [f"answer {trace}" for trace in range(5)]
    assert (counts["episodes"], counts["turns_untrainable.no_token_ids"]) == (5, 5)


async def test_one_object_over_several_lines_and_a_folder_of_files_are_read(tmp_path: Path) -> None:
    folder = tmp_path / "blobs"
    (folder / "observations").mkdir(parents=True)
    (folder / "observations" / "one.json").write_text(json.dumps(row(1), indent=2))
    write(folder / "two.jsonl", [row(2)])
    (folder / "notes.txt").write_text("not a part of it")
    bench = Bench(tmp_path / "store", folder)
    await bench.run()
    assert sorted(map(str, bench.answers())) == ["answer 1", "answer 2"]


async def test_parts_of_a_trace_meet_wherever_they_are_in_the_files(tmp_path: Path) -> None:
    first = write(tmp_path / "a.jsonl", [row(1), row(2)])
    last = write(
        tmp_path / "b.jsonl", [row(2, "TOOL"), {"id": "t-1", "timestamp": "2026-03-01T10:00:00Z", "name": "refund"}]
    )
    bench = Bench(tmp_path / "store", first, last)
    counts = await bench.run()
    assert (counts["episodes"], counts["tools"]) == (2, 1)
    assert [record.task for record in bench.sink.records() if isinstance(record, EpisodeStarted)] == ["refund", "ask"]


async def test_a_second_import_sends_the_same_bytes(tmp_path: Path) -> None:
    file = write(tmp_path / "a.jsonl", [row(trace) for trace in range(3)] * 2)
    bench, again = Bench(tmp_path / "1", file), Bench(tmp_path / "2", file)
    counts = await bench.run()
    await again.run()
    assert bench.keys() == again.keys()
    assert counts["parts_repeated"] == 3
    await bench.run()  # over the same store: all is sent
    assert bench.keys() == again.keys()


async def test_a_torn_file_is_refused_by_line_until_it_is_mended(tmp_path: Path) -> None:
    whole = "".join(json.dumps(row(trace)) + "\n" for trace in range(5))
    file = tmp_path / "a.jsonl"
    file.write_text(whole[:-40])
    bench = Bench(tmp_path / "store", file)
    with pytest.raises(RollbusError, match=r"a.jsonl line 5: it is torn.*What was read before it is kept"):
        await bench.run()
    assert bench.keys() == []
    file.write_text(whole + json.dumps(row(5)) + "\n")
    counts = await bench.run()
    assert (counts["documents"], counts["episodes"], counts.get("parts_repeated", 0)) == (6, 6, 0)
    assert counts["documents_skipped"] == 0


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("{broken", "line 2: it is not JSON"),
        ('{"messages": []}', "line 2: not of format langfuse: it has no id"),
        ("[1]", "line 2: not of format langfuse: it is a list"),
        (
            '{"id": "x", "traceId": "t", "type": "SPAN", "startTime": 1e400}',
            "line 2: not of format langfuse: its start_time",
        ),
        ('{"id": ' + "[" * 100_000, "line 2: it is not JSON"),
        ("\udcff", "line 2: it is not JSON"),
    ],
)
async def test_a_foreign_line_is_refused_or_left_out_and_counted(tmp_path: Path, line: str, reason: str) -> None:
    text = json.dumps(row(1)) + "\n" + line + "\n" + json.dumps(row(2)) + "\n"
    file = tmp_path / "a.jsonl"
    file.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(RollbusError, match=f"{reason}.*, or add --skip-bad"):
        await Bench(tmp_path / "1", file).run()
    bench = Bench(tmp_path / "2", file, skip_bad=True)
    counts = await bench.run()
    assert (counts["documents"], counts["documents_skipped"]) == (2, 1)
    assert len(bench.answers()) == 2


SAMPLES = {
    "langfuse": row(1),
    "langsmith": {"id": "r", "trace_id": "r", "run_type": "llm", "name": "ask", "start_time": "2026-03-01T10:00:00Z"},
    "otlp": request_of([make_span(1)]),
    "openai-chat": {"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]},
    "openai-batch": {"custom_id": "1", "response": {"body": {"choices": []}}},
}  # fmt: skip


@pytest.mark.parametrize("named", SAMPLES)
@pytest.mark.parametrize("own", SAMPLES)
async def test_a_file_under_the_name_of_another_format_is_refused_with_its_own(
    tmp_path: Path, named: str, own: str
) -> None:
    bench = Bench(tmp_path / "store", write(tmp_path / "a.jsonl", [SAMPLES[own]]), format_name=named)
    if named == own:
        await bench.run()
    else:
        with pytest.raises(RollbusError, match=f"line 1: not of format {named}: .*; it looks like {own}"):
            await bench.run()


LINES = "".join(json.dumps(row(trace)) + "\r\n" for trace in range(3))
ARRAY = json.dumps([row(1), row(2)], indent=1).encode()


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (LINES.encode(), None),
        (LINES.encode("utf-8-sig"), None),
        (LINES.rstrip().encode(), None),
        (json.dumps([row(1)]).encode() + b"\r\n", None),
        (LINES.encode("utf-16"), "line 1: it is not UTF-8, but looks like UTF-16\\."),
        (LINES.encode("utf-16-le"), "line 1: it is not UTF-8, but looks like UTF-16LE\\."),
        (LINES.encode("utf-32"), "line 1: it is not UTF-8, but looks like UTF-32\\."),
        (b"", "there is no document in it"),
        (b"\r\n\n", "there is no document in it"),
        (b"[]", "there is no document in it"),
        (b"\n \n" + ARRAY, None),
        (b"{\n" + LINES.encode()[1:] + b"\xe2\x82", r"line \d+: the document that begins there is torn"),
        (gzip.compress(b"", mtime=0), "there is no document in it"),
        (b"id,traceId,type\n1,2,SPAN\n", "line 1: it is not JSON"),
        (b"PK\3\4\x14\0\0\0", "line 1: it is not JSON"),
    ],
)
async def test_a_file_of_another_system_is_read_or_refused_with_the_reason(
    tmp_path: Path, data: bytes, reason: str | None
) -> None:
    file = tmp_path / "a.jsonl"
    file.write_bytes(data)
    bench = Bench(tmp_path / "store", file)
    if reason is None:
        assert (await bench.run())["documents_skipped"] == 0
        assert bench.answers()
    else:
        with pytest.raises(RollbusError, match=reason):
            await bench.run()


@pytest.mark.parametrize("skip_bad", [False, True])
@pytest.mark.parametrize(
    ("data", "remedy"),
    [
        (LINES.encode("utf-16-be"), "convert it with `iconv -f UTF-16BE -t UTF-8` and give"),
        (LINES.encode()[:-20], "line 3: it is torn.*mend the file and give"),
        (gzip.compress(LINES.encode(), mtime=0)[:-20], "its compression is torn.*mend the file and give"),
        (b"\x1f\x8b\x08" + bytes(7) + b"\xff" * 40, "line 1: its compression is torn.*mend the file and give"),
        (
            ARRAY + b"\n\n" + ARRAY,
            r"line \d+: something comes after the end of the array. .*give each array a file of its own and give",
        ),
        *(
            (ARRAY[:-cut], r"line \d+: the document that begins there is torn.*mend the file and give")
            for cut in (10, 150, 300)
        ),
    ],
)
async def test_skipping_is_offered_only_where_it_helps(
    tmp_path: Path, data: bytes, remedy: str, skip_bad: bool
) -> None:
    file = tmp_path / "a.jsonl"
    file.write_bytes(data)
    with pytest.raises(RollbusError, match=f"{remedy} the same command again. --skip-bad does not help"):
        await Bench(tmp_path / "store", file, skip_bad=skip_bad).run()


@pytest.mark.parametrize("start", [b'{"id": "', b'["', b"x"])
async def test_a_line_that_is_too_long_is_refused_before_it_is_read_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, start: bytes
) -> None:
    monkeypatch.setattr(documents, "MAX_DOCUMENT_BYTES", 1 << 20)
    file = tmp_path / "a.jsonl"
    file.write_bytes(start + b"a" * (3 << 20))
    with pytest.raises(RollbusError, match=r"line 1: the (line|document that begins there) is longer than 1048576"):
        await Bench(tmp_path / "store", file).run()


def test_a_path_that_is_not_a_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("-"), tmp_path):
        with pytest.raises(RollbusError, match=r"is not a file or a folder|has no file that ends in"):
            find_files([path])


async def test_a_file_that_has_changed_since_is_refused(tmp_path: Path) -> None:
    file = write(tmp_path / "a.jsonl", [row(1), row(2)])
    file.write_text(file.read_text() + "{torn")
    bench = Bench(tmp_path / "store", file)
    with pytest.raises(RollbusError, match="line 3"):
        await bench.run()
    write(file, [row(3), row(4)])
    with pytest.raises(RollbusError, match="has changed since line 2"):
        await bench.run()


class Killed(BaseException):
    """Stands for the end of the process."""


@pytest.mark.parametrize("form", ["lines", "array"])
@pytest.mark.parametrize("after", [1, 7, 12])
async def test_a_kill_while_reading_costs_no_document(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str, after: int
) -> None:
    monkeypatch.setattr(import_files, "COMMIT_DOCUMENTS", 3)
    file = write(tmp_path / "a.json", [row(trace) for trace in range(20)], form=form)
    bench = Bench(tmp_path / "store", file)
    work, keep, seen = bench.make(), Import._keep, 0

    def kill(*arguments: Any) -> None:
        nonlocal seen
        seen += 1
        if seen > after:
            work.store.close()  # nothing that was not committed survives
            raise Killed
        keep(*arguments)

    monkeypatch.setattr(Import, "_keep", kill)
    with pytest.raises(BaseException):  # noqa: B017, PT011 - the store is gone while the end is noted
        work.read(QUIET)
    monkeypatch.setattr(Import, "_keep", keep)
    counts = await bench.run()
    assert (counts["documents"], counts["episodes"]) == (20, 20)


async def test_a_kill_while_sending_doubles_nothing_but_records_that_are_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rollbus.producers.imports.sending.BATCH_RECORDS", 10)
    file = write(tmp_path / "a.jsonl", [row(trace) for trace in range(20)])
    whole = Bench(tmp_path / "whole", file)
    await whole.run()

    class Dying(MemorySink):
        async def send(self, records: Any) -> frozenset[int]:
            if len(self.sent) > 30:
                raise Killed
            return await super().send(records)

    bench = Bench(tmp_path / "store", file)
    bench.sink = Dying()
    with pytest.raises(Killed):
        await bench.run()
    before = bench.keys()
    bench.sink = MemorySink()
    counts = await bench.run()
    assert sorted({*before, *bench.keys()}) == sorted(whole.keys())
    assert len(before) + len(bench.keys()) - len(whole.keys()) <= 10 + 5
    assert counts["episodes"] >= 20


async def test_a_broker_that_is_away_ends_the_import_and_keeps_what_was_read(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "store", write(tmp_path / "a.jsonl", [row(1)]))
    bench.sink.available = False
    with pytest.raises(UnavailableError):
        await bench.run()
    bench.sink.available = True
    assert (await bench.run())["episodes"] == 1


async def test_a_disk_that_is_full_loses_no_document(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(import_files, "COMMIT_DOCUMENTS", 7)
    rows = [row(trace, input="".join(f"{trace * 7919 + place:x}" for place in range(2000))) for trace in range(60)]
    bench = Bench(tmp_path / "store", write(tmp_path / "a.jsonl", rows))
    work = bench.make()
    work.store.close()
    small = Import(files=work.files, converter=work.converter, store=Store(bench.path, max_bytes=200_000))
    with pytest.raises(UnavailableError, match="takes no more"):
        small.read(QUIET)
    small.store.close()
    counts = await bench.run()
    assert (counts["documents"], counts["episodes"]) == (60, 60)


async def test_a_shape_that_breaks_its_mapping_costs_its_trace_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def breaking(trace_id: str, parts: Any, unmapped: Any) -> Any:
        if trace_id == "t-1":
            raise KeyError("new")
        return FORMATS["langfuse"].assemble(trace_id, parts, unmapped)

    bench = Bench(tmp_path / "store", write(tmp_path / "a.jsonl", [row(trace) for trace in range(3)]))
    work = bench.make()
    work.converter.format = replace(FORMATS["langfuse"], assemble=breaking)
    work.read(QUIET)
    counts = await work.send(lambda: bench.sink, QUIET)
    assert (bench.answers(), counts["traces_refused"]) == (["answer 0", "answer 2"], 1)


async def test_two_imports_of_the_same_files_at_a_time_are_refused(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "store", write(tmp_path / "a.jsonl", [row(1)]))
    first = bench.make()
    assert {path.stat().st_mode & 0o077 for path in bench.path.parent.iterdir()} == {0}  # texts of strangers
    with pytest.raises(ConfigurationError, match="in use"):
        bench.make()
    first.store.close()


async def test_a_file_that_is_not_a_store_is_named(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "store", write(tmp_path / "a.jsonl", [row(1)]))
    bench.path.parent.mkdir()
    bench.path.write_bytes(b"not a database" * 100)
    with pytest.raises(ConfigurationError, match="cannot be read"):
        bench.make()


async def test_a_too_large_trace_is_left_out_and_a_turn_loses_its_content(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rollbus.producers.imports.sending.MAX_TRACE_BYTES", 1 << 20)

    def records(work: Import, limit: int) -> list[Outbound]:
        work.converter.max_record_bytes = limit
        work.read(QUIET)
        return [
            record
            for batch, _ in work.converter.batches(work.store, [trace for _, trace in work.store.find_owed(10)])
            for record in batch
        ]

    file = write(tmp_path / "a.jsonl", [row(1, output="x" * 10_000)])
    work = Bench(tmp_path / "1", file).make()
    records(work, 2000)
    assert work.store.counts()["episodes"] == 1
    huge = write(
        tmp_path / "b.jsonl",
        [row(1, output="x" * (1 << 19)), row(1, "TOOL", output="y" * (1 << 19))],
    )
    work = Bench(tmp_path / "2", huge).make()
    assert records(work, 32 << 20) == []
    assert work.store.counts()["traces_refused"] == 1
    assert "its parts have more than" in work.converter.refused[0]


async def test_a_dry_run_counts_what_an_import_would_send(tmp_path: Path) -> None:
    file = write(tmp_path / "a.jsonl", [row(trace, secret=1) for trace in range(3)])
    bench = Bench(tmp_path / "store", file)
    work = Import(files=[file], converter=TraceConverter(format=FORMATS["langfuse"]), store=Store(None))
    work.read(QUIET)
    assert work.decide(QUIET) == await bench.run()
    assert work.store.counts()["unmapped.langfuse.observation.secret"] == 3
