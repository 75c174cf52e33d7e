"""The files of a run in `output_dir`, with the toolkit's names and fields.

    training_metrics.jsonl   one line per epoch        reward_history.json      a list, rewritten
    validation_history.json  a list, rewritten         curriculum_state.json    what the curriculum remembers
    reward_plot.png          drawn by `draw_plot`        trajectory_builder_<run>.jsonl, trainer_adapter_<run>.jsonl

The lines of the epochs are the truth, and what follows from them is written after them. Files are replaced as a whole,
so a kill leaves the old one or the new one; an epoch written again replaces its line. Epochs count from 0.
"""

import json
from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from rollbus.runtime.files import BY_UMASK, write_whole

Row = dict[str, Any]


class Outputs:
    """The files of one folder."""

    def __init__(self, folder: Path, *, now: Callable[[], str] = lambda: datetime.now().isoformat()) -> None:
        self.folder, self._now = folder, now
        folder.mkdir(parents=True, exist_ok=True)

    def write_epoch(self, epoch: int, run_id: str, metrics: Mapping[str, Any]) -> None:
        """Write an epoch's line, and the history of rewards."""
        row = {"epoch": epoch, "timestamp": self._now(), "run_id": run_id, **metrics}
        rows = [*(other for other in self.training_rows() if other["epoch"] != epoch), row]
        rows.sort(key=lambda row: int(row["epoch"]))
        write_whole(self.folder / "training_metrics.jsonl", "".join(json.dumps(row) + "\n" for row in rows), BY_UMASK)
        self.write_derived_files()

    def write_derived_files(self) -> None:
        """Write what follows from the epochs' lines: a kill between two files leaves it behind them."""
        rows = self.training_rows()
        columns = ("epoch", "timestamp", "avg_reward", "min_reward", "max_reward", "num_trajectories")
        _write_json(self.folder / "reward_history.json", [{name: row.get(name) for name in columns} for row in rows])
        if (state := self.curriculum_state()) is not None:
            _write_json(self.folder / "curriculum_state.json", state)

    def write_validation(self, epoch: int, metrics: Mapping[str, Any]) -> None:
        """Write a validation's row."""
        columns = (
            "avg_reward",
            "min_reward",
            "max_reward",
            "num_examples",
            "avg_reward_low",
            "avg_reward_high",
            "error",
        )
        values = {name: metrics[name] for name in columns if name in metrics}
        row = {"epoch": epoch, "timestamp": self._now(), **values}
        rows = [*(other for other in self.validation_rows() if other["epoch"] != epoch), row]
        _write_json(self.folder / "validation_history.json", sorted(rows, key=lambda row: int(row["epoch"])))

    def training_rows(self) -> list[Row]:
        """Return the epochs' lines; one that a kill tore is left out."""
        path = self.folder / "training_metrics.jsonl"
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        return [row for line in lines if (row := _parse_row(line)) is not None]

    def validation_rows(self) -> list[Row]:
        """Return the validations' rows."""
        return _read_json(self.folder / "validation_history.json") or []

    def curriculum_state(self) -> Row | None:
        """Return what the curriculum remembered after the newest line."""
        return next((row.get("curriculum_state") for row in reversed(self.training_rows())), None)

    def draw_plot(self) -> Path:
        """Draw the curves again."""
        from rollbus.nemo.runs.plot import draw

        path = self.folder / "reward_plot.png"
        draw(path, self.training_rows(), self.validation_rows())
        return path

    def clear(self) -> None:
        """Begin new files: those of an earlier run with another name would mix with this one's."""
        names = ("training_metrics.jsonl", "reward_history.json", "validation_history.json", "curriculum_state.json")
        for name in (*names, "reward_plot.png"):
            (self.folder / name).unlink(missing_ok=True)


def append_line(path: str | Path, values: Mapping[str, Any]) -> None:
    """Append one line of JSON with the time, unless the file has a line with the same values.

    A resumed run writes again what it wrote before a kill.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    written_rows = [
        {**written, "timestamp": ""} for written in map(_parse_row, text.splitlines()) if written is not None
    ]
    row = json.loads(json.dumps({"timestamp": "", **values}, default=str))
    if row not in written_rows:
        begin = "" if text.endswith("\n") or not text else "\n"  # after a torn line
        with path.open("a", encoding="utf-8") as file:
            file.write(begin + json.dumps({**row, "timestamp": datetime.now().isoformat()}) + "\n")


def _parse_row(line: str) -> Row | None:
    try:
        row = json.loads(line)
    except ValueError:
        return None
    return row if isinstance(row, dict) else None


def _read_json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None


def _write_json(path: Path, value: Any) -> None:
    write_whole(path, json.dumps(value, indent=2) + "\n", BY_UMASK)
