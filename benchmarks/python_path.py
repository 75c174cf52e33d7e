"""Where another environment's Python finds the checkout: `benchmarks`, and `rollbus` as it is installed here."""

from pathlib import Path

from rollbus import schemas

ROOT = Path(__file__).parents[1]


def python_path() -> str:
    """Return PYTHONPATH for an environment that has not rollbus: its folders are one package where it is installed."""
    return f"{ROOT}:{Path(schemas.__file__).parents[2]}"
