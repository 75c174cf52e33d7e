"""The comparison with the toolkit is what its tests show: every row has a test, and the page has every row."""

import ast
import csv
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROWS = list(csv.DictReader((ROOT / "tests" / "nemo" / "comparison.csv").read_text(encoding="utf-8").splitlines()))


@pytest.mark.parametrize("name", sorted({row["test"] for row in ROWS if row["test"]}))
def test_every_row_names_a_test_that_is_there(name: str) -> None:
    file, _, function = name.partition("::")
    tree = ast.parse((ROOT / "tests" / file).read_text())
    test_names = {
        definition.name for definition in tree.body if isinstance(definition, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    assert function in test_names


def test_the_page_has_the_table_that_the_tests_give() -> None:
    process = subprocess.run([sys.executable, ROOT / "scripts" / "nemo_table", "--check"], check=False)
    assert process.returncode == 0, "run scripts/nemo_table"
