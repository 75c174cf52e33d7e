"""One export: a filter → files in a folder, and a manifest that says what is in them and what was left out.

    reading ─trajectories─▶ conversations ─▶ formats (or preferences ─▶ formats) ─rows─▶ writing

The manifest is written last: a folder without one is not whole.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path
from typing import Any, Literal

from rollbus.consumers.clickhouse.client_clickhouse import ClickHouse
from rollbus.consumers.export.conversations import Exchange, chat_message, exchanges, longest
from rollbus.consumers.export.formats import (
    DpoLayout,
    SftLayout,
    completion_row,
    conversation_row,
    nemo_dpo_row,
    preference_row,
)
from rollbus.consumers.export.preferences import Candidate, group_candidates, preference_pairs
from rollbus.consumers.export.reading import Selected, choose, read_exclusions, with_payload
from rollbus.consumers.export.writing import FileFormat, WrittenFile, write_rows
from rollbus.schemas.errors import ConfigurationError
from rollbus.schemas.ids import hash_bytes

Kind = Literal["trajectories", "sft", "dpo"]
Row = dict[str, Any]
Progress = Callable[[int, int], None]
MANIFEST = "manifest.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportRequest:
    """What is asked for."""

    kind: Kind
    namespace: str
    run: str = "main"
    where: str = ""
    """A condition in SQL over `reading.COLUMNS`."""
    limit: int | None = None
    file_format: FileFormat = "jsonl"
    sft_layout: SftLayout = "messages"
    dpo_layout: DpoLayout = "preference"
    tokens: bool = False
    """Trajectories: token ids and log-probs too."""
    validation: float = 0.0
    """Share of the problems held back in a file of their own."""
    min_margin: float = 0.0
    exhaustive: bool = False
    max_pairs: int | None = None


def export(
    client: ClickHouse, request: ExportRequest, folder: Path, *, progress: Progress = lambda done, of: None
) -> dict[str, Any]:
    """Write the export and return its manifest; raises ConfigurationError, ServiceError."""
    if (folder / MANIFEST).exists():
        raise ConfigurationError(f"{folder} holds an export already; name another folder, or remove it")
    if request.kind == "dpo" and request.dpo_layout == "nemo-dpo" and request.file_format == "parquet":
        raise ConfigurationError("NeMo Customizer reads JSONL; leave out --format parquet")
    exclusions = read_exclusions(client, request.namespace)
    chosen = choose(client, request.namespace, request.run, request.where, request.limit)
    left_out: Counter[str] = Counter()
    files: list[WrittenFile] = []
    counted = _Counted(len(chosen), progress)
    for name, part in _parts(request, chosen):
        selected = counted.each(with_payload(client, request.namespace, part, tokens=request.tokens))
        rows = _rows(request, selected, left_out)
        files.append(write_rows(folder, name, rows, request.file_format))
    manifest = {
        "request": asdict(request),
        "trajectories": len(chosen),
        "files": [asdict(file) for file in files],
        "left_out": dict(left_out),
        "exclusions": asdict(exclusions),
        "written_at": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n")
    return manifest


class _Counted:
    def __init__(self, total: int, progress: Progress) -> None:
        self._done, self._total, self._progress = 0, total, progress

    def each(self, selected: Iterable[Selected]) -> Iterator[Selected]:
        for one in selected:
            yield one
            self._done += 1
            self._progress(self._done, self._total)


def _parts(request: ExportRequest, chosen: list[Row]) -> list[tuple[str, list[Row]]]:
    """Return the files' names and what goes in; all attempts at one problem are in the same."""
    nemo = request.kind == "dpo" and request.dpo_layout == "nemo-dpo"
    train, held_back = ("training/training_file", "validation/validation_file") if nemo else ("train", "validation")
    if not request.validation:
        return [(train, chosen)]
    held = {hint for hint in {row["group_hint"] for row in chosen} if _share(hint) < request.validation}
    return [
        (train, [row for row in chosen if row["group_hint"] not in held]),
        (held_back, [row for row in chosen if row["group_hint"] in held]),
    ]


def _share(text: str) -> float:
    """Return a number from 0 to 1 that belongs to a text for ever, so that no problem changes sides."""
    return int(hash_bytes(text.encode())[:8], 16) / 16**8


def _rows(request: ExportRequest, selected: Iterable[Selected], left_out: "Counter[str]") -> Iterator[Row]:
    if request.kind == "trajectories":
        return (_trajectory_row(request, one, left_out) for one in selected)
    if request.kind == "sft":
        return (row for one in selected for row in _sft_rows(request, one, left_out))
    return _dpo_rows(request, selected, left_out)


def _trajectory_row(request: ExportRequest, one: Selected, left_out: "Counter[str]") -> Row:
    found = [_chat(exchange) for exchange in longest(_found(one, left_out))]
    whole = [conversation for conversation in found if conversation is not None]
    if len(whole) < len(found):
        left_out["not text"] += len(found) - len(whole)
    row = {**one.facts, "labels": dict(one.facts["labels"]), "components": dict(one.facts["components"])}
    row |= {"conversations": whole, "tools": one.tools}
    return row | ({"histories": [asdict(history) for history in one.histories]} if request.tokens else {})


def _sft_rows(request: ExportRequest, one: Selected, left_out: "Counter[str]") -> Iterator[Row]:
    if request.sft_layout == "prompt-completion":
        yield from map(completion_row, _candidates(one, left_out, scored=False))
        return
    for exchange in longest(_found(one, left_out)):
        messages = _chat(exchange)
        if messages is None:
            left_out["not text"] += 1
        else:
            yield conversation_row(messages, tools=exchange.tools, **_facts(one))


def _dpo_rows(request: ExportRequest, selected: Iterable[Selected], left_out: "Counter[str]") -> Iterator[Row]:
    for _, attempts in groupby(selected, key=lambda one: one.facts["group_hint"]):
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


def _candidates(one: Selected, left_out: "Counter[str]", *, scored: bool) -> Iterator[Candidate]:
    if scored and one.facts["reward"] is None:
        left_out["not scored"] += 1
        return
    for exchange in _found(one, left_out):
        messages = _chat(exchange)
        if messages is None:
            left_out["not text"] += 1
            continue
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


def _found(one: Selected, left_out: "Counter[str]") -> list[Exchange]:
    found, broken = exchanges(one.turns)
    if broken:
        left_out["turns whose prompt is not whole"] += len(broken)
    return found


def _chat(exchange: Exchange) -> list[Row] | None:
    messages = [chat_message(message) for message in exchange.messages]
    return None if any(message is None for message in messages) else [message for message in messages if message]
