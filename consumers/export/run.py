"""One export: a filter → files in a folder, and a manifest of what is in them and what was left out.

    reading ─trajectories─▶ conversations ─▶ formats (or preferences ─▶ formats) ─rows─▶ writing

How a row looks depends on who reads it (`readers`). What it would load as something else is left out.

The manifest is written last: a folder without one is incomplete.
"""

import itertools
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from rollbus.consumers.clickhouse.store.client import ClickHouse
from rollbus.consumers.export.conversations import PromptedTurn, chat_message, restore_prompts, whole_conversations
from rollbus.consumers.export.formats import completion_row, conversation_row, evaluation_row, preference_row
from rollbus.consumers.export.numbers import UnfitRowError
from rollbus.consumers.export.preferences import Candidate, group_candidates, preference_pairs
from rollbus.consumers.export.readers import READERS, Kind, ReaderName, SftLayout, require_form
from rollbus.consumers.export.reading import (
    Selected,
    describe_unfiltered,
    read_exclusions,
    read_payloads,
    select_trajectories,
)
from rollbus.consumers.export.writing import FEATURES, PLAIN_MESSAGES, FileFormat, WrittenFile, path_of, write_rows
from rollbus.schemas.errors import ConfigurationError
from rollbus.schemas.ids import hash_bytes

Row = dict[str, Any]
Progress = Callable[[int, int], None]
MANIFEST = "manifest.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportRequest:
    """What to export, and how."""

    kind: Kind
    namespace: str
    run: str = "main"
    where: str = ""
    """A condition in SQL over the columns that `reading` selects."""
    data_set: str = ""
    """Only its members; empty means all trajectories."""
    limit: int | None = None
    reader: ReaderName = "hf"
    """Which program will read the files; trajectories are the same for all."""
    file_format: FileFormat | None = None
    """None: what the reader takes best."""
    sft_layout: SftLayout = "messages"
    tokens: bool = False
    """Of trajectories, export token ids and log-probs, too."""
    validation: float = 0.0
    """Share of the problems that goes into a file of its own."""
    min_margin: float = 0.0
    exhaustive: bool = False
    max_pairs: int | None = None


def export(
    client: ClickHouse, request: ExportRequest, folder: Path, *, progress: Progress = lambda done, of: None
) -> dict[str, Any]:
    """Write the export and return its manifest; raises ConfigurationError, also where nothing matches, ServiceError."""
    file_format = require_form(request.reader, request.kind, request.sft_layout, request.file_format)
    _require_free(folder, [path_of(folder, name, file_format) for name in _file_names(request)])
    exclusions = read_exclusions(client, request.namespace)
    selection = select_trajectories(
        client, request.namespace, request.run, request.where, request.limit, request.data_set
    )
    if not selection:
        there = describe_unfiltered(client, request.namespace, request.run, request.data_set)
        condition = f" matches {request.where!r}" if request.where else " is there"
        raise ConfigurationError(f"nothing was exported: no trajectory{condition}; {there}")
    left_out: Counter[str] = Counter()
    files: list[WrittenFile] = []
    done = itertools.count(1)

    def report_each(selected: Iterable[Selected]) -> Iterator[Selected]:
        for attempt in selected:
            yield attempt
            progress(next(done), len(selection))

    for name, part in _split_validation(request, selection):
        selected = report_each(read_payloads(client, request.namespace, part, tokens=request.tokens))
        files.append(write_selected(request, selected, folder, name, left_out))
    if not any(file.rows for file in files):
        _remove_files(folder, files)
        reasons = ", ".join(f"{count} {reason}" for reason, count in left_out.items())
        need = "; a pair is two answers to one prompt, with different rewards" if request.kind == "dpo" else ""
        raise ConfigurationError(
            f"nothing was exported: {len(selection)} trajectories gave no row; left out: {reasons}{need}"
        )
    manifest = {
        "request": asdict(request) | {"file_format": file_format},
        "trajectories": len(selection),
        "files": [asdict(file) for file in files],
        "load": [line for file in files if (line := load_line(request, folder, file))],
        "left_out": dict(left_out),
        "exclusions": asdict(exclusions),
        "written_at": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n")
    return manifest


def write_selected(
    request: ExportRequest, selected: Iterable[Selected], folder: Path, name: str, left_out: "Counter[str]"
) -> WrittenFile:
    """Write one file of an export, and count what is left out of it by its reason."""

    def refuse(reason: str) -> None:
        left_out[f"rows {reason}"] += 1

    return write_rows(
        folder,
        name,
        _rows(request, selected, left_out),
        require_form(request.reader, request.kind, request.sft_layout, request.file_format),
        types=_types(request),
        has_features=request.kind == "trajectories" or READERS[request.reader].has_datasets,
        refuse=refuse,
    )


def _remove_files(folder: Path, files: Iterable[WrittenFile]) -> None:
    """Remove files that hold no row, with the folders that were made for them."""
    for file in files:
        path = folder / file.path
        path.unlink()
        with suppress(OSError):  # something else is in it
            path.parent.rmdir()
    (folder / FEATURES).unlink(missing_ok=True)
    with suppress(OSError):
        folder.rmdir()


def load_line(request: ExportRequest, folder: Path, file: WrittenFile) -> str:
    """Return the line of Python that loads a file with `datasets`; empty if the reader has a loader of its own."""
    if request.kind != "trajectories" and request.reader not in {"hf", "trl"}:
        return ""
    path, features_path = (json.dumps(str(folder / name), ensure_ascii=False) for name in (file.path, FEATURES))
    if file.path.endswith(".parquet"):
        return f'load_dataset("parquet", data_files={path}, split="train")'
    features = f"Features.from_dict(json.load(open({features_path})))"
    return f'Dataset.from_generator(lambda: map(json.loads, open({path}, "rb")), features={features})'


def _types(request: ExportRequest) -> dict[str, pa.DataType]:
    """Return the columns that have another type than usual."""
    if request.kind == "trajectories" or request.reader == "axolotl":
        return {"tools": pa.string()}
    return {"messages": PLAIN_MESSAGES} if request.reader == "verl" and request.kind == "sft" else {}


def _require_free(folder: Path, paths: Iterable[Path]) -> None:
    if (folder / MANIFEST).exists():
        raise ConfigurationError(f"{folder} already holds an export; name another folder, or remove it")
    for path in paths:
        if path.exists():
            raise ConfigurationError(
                f"{path} is there, and {folder} has no {MANIFEST}: it is yours, or of an export that was cut off; name "
                "another folder, or remove it"
            )


def _file_names(request: ExportRequest) -> tuple[str, ...]:
    """Return the names of the files, without endings: of what is trained on, and of what is held back."""
    reader = READERS["hf" if request.kind == "trajectories" else request.reader]
    return reader.file_names if request.validation else reader.file_names[:1]


def _split_validation(request: ExportRequest, selection: list[Row]) -> list[tuple[str, list[Row]]]:
    """Return the rows of each file by its name; all attempts at one problem are in one file."""
    names = _file_names(request)
    if len(names) == 1:
        return [(names[0], selection)]
    held_back = {hint for hint in {row["group_hint"] for row in selection} if _share(hint) < request.validation}
    return [
        (names[0], [row for row in selection if row["group_hint"] not in held_back]),
        (names[1], [row for row in selection if row["group_hint"] in held_back]),
    ]


def _share(text: str) -> float:
    """Return a number from 0 to 1 that depends only on the text, so that no problem changes sides."""
    return int(hash_bytes(text.encode())[:8], 16) / 16**8


def _rows(request: ExportRequest, selected: Iterable[Selected], left_out: "Counter[str]") -> Iterator[Row]:
    if request.kind == "trajectories":
        return (_trajectory_row(request, attempt, left_out) for attempt in selected)
    if request.kind == "sft":
        return (row for attempt in selected for row in _sft_rows(request, attempt, left_out))
    if request.kind == "evaluation":
        return _evaluation_rows(request, selected, left_out)
    return _dpo_rows(request, selected, left_out)


def _fit(make_row: Callable[[], Row], what: str, left_out: "Counter[str]") -> Iterator[Row]:
    """Yield the row, or count why the reader cannot have it."""
    try:
        yield make_row()
    except UnfitRowError as error:
        left_out[f"{what} {error}"] += 1


def _trajectory_row(request: ExportRequest, attempt: Selected, left_out: "Counter[str]") -> Row:
    conversations = [messages for _, messages in _conversations(attempt, left_out)]
    pairs = {name: _as_pairs(attempt.facts[name]) for name in ("labels", "components")}
    row = {**attempt.facts, **pairs, "conversations": conversations, "tools": attempt.tools}
    return row | ({"histories": [asdict(history) for history in attempt.histories]} if request.tokens else {})


def _as_pairs(values: Mapping[str, Any]) -> list[Row]:
    """Return a mapping as a list: the library that trainers load data sets with has no mappings."""
    return [{"name": name, "value": value} for name, value in values.items()]


def _sft_rows(request: ExportRequest, attempt: Selected, left_out: "Counter[str]") -> Iterator[Row]:
    if request.sft_layout == "prompt-completion":
        for candidate in _candidates(attempt, left_out, scored=False):
            yield from _fit(partial(completion_row, candidate), "answers", left_out)
        return
    for exchange, messages in _conversations(attempt, left_out):
        make_row = partial(conversation_row, request.reader, messages, tools=exchange.tools, **_facts(attempt))
        yield from _fit(make_row, "conversations", left_out)


def _dpo_rows(request: ExportRequest, selected: Iterable[Selected], left_out: "Counter[str]") -> Iterator[Row]:
    for _, attempts in itertools.groupby(selected, key=lambda attempt: attempt.facts["group_hint"]):
        candidates = [candidate for attempt in attempts for candidate in _candidates(attempt, left_out, scored=True)]
        for answers in group_candidates(candidates):
            pairs = preference_pairs(
                answers,
                min_margin=request.min_margin,
                exhaustive=request.exhaustive,
                max_pairs=request.max_pairs,
            )
            if not pairs:
                left_out["answers without a preference"] += len(answers)
            for pair in pairs:
                yield from _fit(partial(preference_row, request.reader, pair), "pairs", left_out)


def _evaluation_rows(request: ExportRequest, selected: Iterable[Selected], left_out: "Counter[str]") -> Iterator[Row]:
    """Yield each problem once: how its best attempt was asked first, and what it answered at the end."""
    for _, group in itertools.groupby(selected, key=lambda attempt: attempt.facts["group_hint"]):
        attempts = [(attempt.facts, list(_as_text(_exchanges(attempt, left_out), left_out))) for attempt in group]
        answered = [(facts, exchanges) for facts, exchanges in attempts if exchanges]
        if not answered:
            left_out["problems without a conversation of text"] += 1
            continue
        best, exchanges = max(answered, key=lambda pair: (pair[0]["reward"] is not None, pair[0]["reward"] or 0.0))
        (first, opening), (_, ending) = exchanges[0], exchanges[-1]
        make_row = partial(
            evaluation_row,
            request.reader,
            opening[:-1],
            ending[-1],
            tools=first.tools,
            attempts=len(attempts),
            facts=best,
        )
        yield from _fit(make_row, "problems", left_out)


def _candidates(attempt: Selected, left_out: "Counter[str]", *, scored: bool) -> Iterator[Candidate]:
    if scored and attempt.facts["reward"] is None:
        left_out["not scored"] += 1
        return
    for exchange, messages in _as_text(_exchanges(attempt, left_out), left_out):
        yield Candidate(
            id=exchange.event_id,
            prompt=tuple(messages[:-1]),
            completion=messages[-1],
            score=attempt.facts["reward"] or 0.0,
            tools=exchange.tools,
            facts=_facts(attempt),
        )


def _facts(attempt: Selected) -> Row:
    return {name: attempt.facts[name] for name in ("trajectory_id", "task", "reward", "policy_version")}


def _conversations(attempt: Selected, left_out: "Counter[str]") -> Iterator[tuple[PromptedTurn, list[Row]]]:
    return _as_text(whole_conversations(_exchanges(attempt, left_out)), left_out)


def _exchanges(attempt: Selected, left_out: "Counter[str]") -> list[PromptedTurn]:
    exchanges, incomplete = restore_prompts(attempt.turns)
    if incomplete:
        left_out["turns whose prompt is not whole"] += len(incomplete)
    answered = [exchange for exchange in exchanges if exchange.has_answer]
    if len(answered) < len(exchanges):
        left_out["turns without a whole answer"] += len(exchanges) - len(answered)
    return answered


def _as_text(exchanges: Iterable[PromptedTurn], left_out: "Counter[str]") -> Iterator[tuple[PromptedTurn, list[Row]]]:
    """Yield the exchanges that hold only text, with their messages in OpenAI's form."""
    for exchange in exchanges:
        messages = [chat for message in exchange.messages if (chat := chat_message(message)) is not None]
        if len(messages) == len(exchange.messages):
            yield exchange, messages
        else:
            left_out["not text"] += 1
