"""One export: a filter → files in a folder, and a manifest of what is in them and what was left out.

    reading ─trajectories─▶ conversations ─▶ formats (or preferences ─▶ formats) ─rows─▶ writing

The manifest is written last: a folder without one is incomplete.
"""

import itertools
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from rollbus.consumers.clickhouse.store.client import ClickHouse
from rollbus.consumers.export.conversations import PromptedTurn, chat_message, restore_prompts, whole_conversations
from rollbus.consumers.export.formats import (
    DpoLayout,
    SftLayout,
    completion_row,
    conversation_row,
    evaluation_row,
    nemo_dpo_row,
    preference_row,
)
from rollbus.consumers.export.preferences import Candidate, group_candidates, preference_pairs
from rollbus.consumers.export.reading import Selected, read_exclusions, read_payloads, select_trajectories
from rollbus.consumers.export.writing import FileFormat, WrittenFile, path_of, write_rows
from rollbus.schemas.errors import ConfigurationError
from rollbus.schemas.ids import hash_bytes

Kind = Literal["trajectories", "sft", "dpo", "evaluation"]
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
    file_format: FileFormat = "jsonl"
    sft_layout: SftLayout = "messages"
    dpo_layout: DpoLayout = "preference"
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
    """Write the export and return its manifest; raises ConfigurationError, ServiceError."""
    if (folder / MANIFEST).exists():
        raise ConfigurationError(f"{folder} already holds an export; name another folder, or remove it")
    if request.kind == "dpo" and request.dpo_layout == "nemo-dpo" and request.file_format == "parquet":
        raise ConfigurationError("NeMo Customizer reads only JSONL; leave out --format parquet")
    for name in _file_names(request):
        if (path := path_of(folder, name, request.file_format)).exists():
            raise ConfigurationError(
                f"{path} is there, and {folder} has no {MANIFEST}: it is yours, or of an export that was cut off; name "
                "another folder, or remove it"
            )
    exclusions = read_exclusions(client, request.namespace)
    selection = select_trajectories(
        client, request.namespace, request.run, request.where, request.limit, request.data_set
    )
    left_out: Counter[str] = Counter()
    files: list[WrittenFile] = []
    done = itertools.count(1)

    def report_each(selected: Iterable[Selected]) -> Iterator[Selected]:
        for one in selected:
            yield one
            progress(next(done), len(selection))

    for name, part in _split_validation(request, selection):
        selected = report_each(read_payloads(client, request.namespace, part, tokens=request.tokens))
        files.append(write_rows(folder, name, _rows(request, selected, left_out), request.file_format))
    manifest = {
        "request": asdict(request),
        "trajectories": len(selection),
        "files": [asdict(file) for file in files],
        "left_out": dict(left_out),
        "exclusions": asdict(exclusions),
        "written_at": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n")
    return manifest


def _file_names(request: ExportRequest) -> tuple[str, ...]:
    """Return the names of the files, without endings: of what is trained on, and of what is held back."""
    nemo = request.kind == "dpo" and request.dpo_layout == "nemo-dpo"
    train, held_back = ("training/training_file", "validation/validation_file") if nemo else ("train", "validation")
    return (train, held_back) if request.validation else (train,)


def _split_validation(request: ExportRequest, selection: list[Row]) -> list[tuple[str, list[Row]]]:
    """Return the rows of each file by its name; all attempts at one problem are in one file."""
    names = _file_names(request)
    if len(names) == 1:
        return [(names[0], selection)]
    held = {hint for hint in {row["group_hint"] for row in selection} if _share(hint) < request.validation}
    return [
        (names[0], [row for row in selection if row["group_hint"] not in held]),
        (names[1], [row for row in selection if row["group_hint"] in held]),
    ]


def _share(text: str) -> float:
    """Return a number from 0 to 1 that depends only on the text, so that no problem changes sides."""
    return int(hash_bytes(text.encode())[:8], 16) / 16**8


def _rows(request: ExportRequest, selected: Iterable[Selected], left_out: "Counter[str]") -> Iterator[Row]:
    if request.kind == "trajectories":
        return (_trajectory_row(request, one, left_out) for one in selected)
    if request.kind == "sft":
        return (row for one in selected for row in _sft_rows(request, one, left_out))
    if request.kind == "evaluation":
        return _evaluation_rows(selected, left_out)
    return _dpo_rows(request, selected, left_out)


def _trajectory_row(request: ExportRequest, one: Selected, left_out: "Counter[str]") -> Row:
    conversations = [messages for _, messages in _conversations(one, left_out)]
    row = {**one.facts, "labels": dict(one.facts["labels"]), "components": dict(one.facts["components"])}
    row |= {"conversations": conversations, "tools": one.tools}
    return row | ({"histories": [asdict(history) for history in one.histories]} if request.tokens else {})


def _sft_rows(request: ExportRequest, one: Selected, left_out: "Counter[str]") -> Iterator[Row]:
    if request.sft_layout == "prompt-completion":
        yield from map(completion_row, _candidates(one, left_out, scored=False))
        return
    for exchange, messages in _conversations(one, left_out):
        yield conversation_row(messages, tools=exchange.tools, **_facts(one))


def _dpo_rows(request: ExportRequest, selected: Iterable[Selected], left_out: "Counter[str]") -> Iterator[Row]:
    for _, attempts in itertools.groupby(selected, key=lambda one: one.facts["group_hint"]):
        candidates = [candidate for one in attempts for candidate in _candidates(one, left_out, scored=True)]
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
                row = preference_row(pair) if request.dpo_layout == "preference" else nemo_dpo_row(pair)
                if row is None:
                    left_out["pairs with tool calls"] += 1
                else:
                    yield row


def _evaluation_rows(selected: Iterable[Selected], left_out: "Counter[str]") -> Iterator[Row]:
    """Yield each problem once: how its best attempt was asked first, and what it answered at the end."""
    for _, attempts in itertools.groupby(selected, key=lambda one: one.facts["group_hint"]):
        known = list(attempts)
        best = max(known, key=lambda one: (one.facts["reward"] is not None, one.facts["reward"] or 0.0))
        exchanges = list(_as_text(_exchanges(best, left_out), left_out))
        if not exchanges:
            left_out["problems without a conversation of text"] += 1
            continue
        (first, asked), (_, ended) = exchanges[0], exchanges[-1]
        yield evaluation_row(asked[:-1], ended[-1], tools=first.tools, attempts=len(known), facts=best.facts)


def _candidates(one: Selected, left_out: "Counter[str]", *, scored: bool) -> Iterator[Candidate]:
    if scored and one.facts["reward"] is None:
        left_out["not scored"] += 1
        return
    for exchange, messages in _as_text(_exchanges(one, left_out), left_out):
        yield Candidate(
            id=exchange.event_id,
            prompt=tuple(messages[:-1]),
            completion=messages[-1],
            score=one.facts["reward"] or 0.0,
            tools=exchange.tools,
            facts=_facts(one),
        )


def _facts(one: Selected) -> Row:
    return {name: one.facts[name] for name in ("trajectory_id", "task", "reward", "policy_version")}


def _conversations(one: Selected, left_out: "Counter[str]") -> Iterator[tuple[PromptedTurn, list[Row]]]:
    return _as_text(whole_conversations(_exchanges(one, left_out)), left_out)


def _exchanges(one: Selected, left_out: "Counter[str]") -> list[PromptedTurn]:
    exchanges, incomplete = restore_prompts(one.turns)
    if incomplete:
        left_out["turns whose prompt is not whole"] += len(incomplete)
    return exchanges


def _as_text(exchanges: Iterable[PromptedTurn], left_out: "Counter[str]") -> Iterator[tuple[PromptedTurn, list[Row]]]:
    """Yield the exchanges that hold only text, with their messages in OpenAI's form."""
    for exchange in exchanges:
        messages = [chat for message in exchange.messages if (chat := chat_message(message)) is not None]
        if len(messages) == len(exchange.messages):
            yield exchange, messages
        else:
            left_out["not text"] += 1
