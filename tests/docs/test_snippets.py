"""The program of README's first screen, and that of the first page, run as they are written, at other addresses."""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.agents.model_server import Faults, ModelServer
from tests.installs import own_environment

pytestmark = pytest.mark.slow  # each waits at its end for a broker that is not there

ROOT = Path(__file__).parents[2]
PAGES = {"README.md": "", "docs/first-agent.md": '\nassert answer("ticket-4711", "Where is my parcel?")\n'}
"""Page → what calls its program, where that only defines a function."""


@pytest.fixture
def server() -> Iterator[ModelServer]:
    server = ModelServer(Faults())
    yield server
    server.close()


@pytest.mark.parametrize("page", PAGES)
def test_the_snippet_of_a_page_runs_and_its_answers_are_bounded(page: str, server: ModelServer, tmp_path: Path) -> None:
    """Without a bound a small model writes on until its context is full, and the reader waits for minutes."""
    program = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), flags=re.DOTALL)[0]
    assert "max_tokens=" in program
    program = program.replace("http://127.0.0.1:8000/v1", server.url).replace("127.0.0.1:9092", "127.0.0.1:9")
    completed = subprocess.run(
        [sys.executable, "-c", program + PAGES[page]],
        cwd=tmp_path,
        env=own_environment(),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert completed.returncode == 0, completed.stderr
    assert len(server.answers) == 1
