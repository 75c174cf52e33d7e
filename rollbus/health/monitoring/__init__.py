"""Prometheus' and Grafana's files, as they are written for an operator: `files/` goes out unchanged."""

import shutil
from pathlib import Path

FILES = Path(__file__).parent / "files"


def write_files(folder: Path) -> list[Path]:
    """Copy the files into a folder, over those of an earlier release; return their paths."""
    shutil.copytree(FILES, folder, dirs_exist_ok=True)
    return sorted(folder / path.relative_to(FILES) for path in FILES.rglob("*") if path.is_file())
