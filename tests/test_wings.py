"""Wings can be left away: what not every user needs is a room of its own, and the core does not import it."""

import ast
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.installs import FOLDERS

ROOT = Path(__file__).parents[1]
WINGS = {
    "nemo": "rollbus/nemo",
    "imports": "producers/imports",
    "page": "rollbus/ui",
    "art_server": "trainer/art_server",
    "archive": "rollbus/archive",
    "demo": "rollbus/demo",
    "local": "rollbus/local",
}
"""The room of each wing."""
ENTRIES = {
    "rollbus/cli/commands/*": "a command imports its wing when it is called",
    "rollbus/start/*": "starts the local stack; a command of its own",
    "rollbus/health/checks.py": "`rollbus doctor` looks at the local stack where there is one",
    "producers/integrations/spans.py": "reads spans as the imports do, where the program makes some",
    "trainer/process.py": "`backend: {type: art-local}` holds the model in the trainer's process",
}
"""Files outside of the wings that import one, each inside a function, and why."""


def module_of(path: Path) -> str:
    name = path.relative_to(ROOT).with_suffix("").as_posix().removesuffix("/__init__").replace("/", ".")
    return name if name.startswith("rollbus") else f"rollbus.{name}"


def imports_of(path: Path) -> Iterator[tuple[str, bool]]:
    """Yield each rollbus module that a file imports, and whether it does so at the top."""
    tree = ast.parse(path.read_text())
    top = set(tree.body)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("rollbus"):
            yield node.module or "", node in top


def test_the_core_imports_no_wing() -> None:
    prefixes = {wing: module_of(ROOT / folder / "__init__.py") for wing, folder in WINGS.items()}
    wrong = []
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            place = path.relative_to(ROOT).as_posix()
            if any(place.startswith(f"{room}/") for room in WINGS.values()):
                continue
            is_entry = any(path.relative_to(ROOT).match(entry) or place.startswith(entry[:-1]) for entry in ENTRIES)
            for module, at_top in imports_of(path):
                wings = [wing for wing, prefix in prefixes.items() if f"{module}.".startswith(f"{prefix}.")]
                if wings and (not is_entry or (at_top and not place.startswith("rollbus/start/"))):
                    wrong.append(f"{place} imports {module} of the wing {wings[0]}")
    assert wrong == []


@pytest.mark.slow
def test_a_core_without_any_wing_on_disk_runs_the_loop(tmp_path: Path) -> None:
    """From events to steps, with the shipped fakes: the test of the flow, in a copy that has no wings."""
    for folder in FOLDERS:
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for room in WINGS.values():
        shutil.rmtree(tmp_path / room)
    program = (
        "import sys, importlib.abc\n"
        f"sys.path.insert(0, {str(tmp_path)!r})\n"
        "import rollbus\n"
        f"rollbus.__path__ = [{str(tmp_path / 'rollbus')!r}, {str(tmp_path)!r}]\n"
        f"sys.path.append({str(ROOT)!r})\n"
        "import pytest\n"
        f"sys.exit(pytest.main(['-q', '-n0', '-p', 'no:cacheprovider', {str(ROOT / 'tests' / 'flow')!r}]))\n"
    )
    completed = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert completed.returncode == 0, completed.stdout + completed.stderr
