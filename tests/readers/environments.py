"""The trainers that read exports, each in the environment `.venv-readers/NAME`, from its list in `requirements`."""

from pathlib import Path

from tests.environments import ROOT, make_environment, run_command

REQUIREMENTS = Path(__file__).parent / "requirements"


def run_check(name: str, check: str, *arguments: object) -> str:
    """Run a module of `in_reader` with a reader's Python; return what it printed."""
    python = make_environment(f"readers/{name}", REQUIREMENTS / f"{name}.txt")
    return run_command([python, "-m", f"tests.readers.in_reader.{check}", *arguments], PYTHONPATH=str(ROOT))
