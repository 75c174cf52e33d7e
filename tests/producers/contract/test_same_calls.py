"""Every way of recording reads the same calls the same."""

import json
import subprocess
import sys
from typing import Any

import pytest

from tests.producers.contract.play import CALL, CASES

HELLO = "Hello there"
TOOL = [CALL["id"], "look", {"at": 1}]


def reading(answer: str | None, reason: str | None, *tools: Any, tokens: Any = (3, 2), choice: int = 0) -> Any:
    """What one turn says; the second choice repeats no prompt."""
    prompt_texts = ["Say hello"] if choice == 0 else []
    values = {"asked": prompt_texts, "answer": answer, "tools": [*tools], "reason": reason}
    return {**values, "tokens": [*tokens], "choice": choice}


TWO = [reading(HELLO, "stop", tokens=(3, 4), choice=choice) for choice in (0, 1)]
NOTHING = (None, None)
EXPECTED_READINGS = {
    "plain": [reading(HELLO, "stop")],
    "streamed": [reading(HELLO, "stop")],
    "two": TWO,
    "two streamed": TWO,
    "tool": [reading(None, "tool_calls", TOOL)],
    "tool streamed": [reading(None, "tool_calls", TOOL)],
    "left early": [reading("Hello", None, tokens=NOTHING)],
    "cut off": [reading("Hello", None, tokens=NOTHING)],
    "failed": [reading(None, None, tokens=NOTHING)],
}
UNREAD = [reading(None, None, tokens=(3, 4), choice=choice) for choice in (0, 1)]
LOST_FIELDS: dict[str, Any] = {
    "langfuse": {
        "plain": [reading(HELLO, None)],
        "tool": [reading(None, None, TOOL)],
        "two": UNREAD,
        "two streamed": UNREAD,
    }
}
"""What an instrumentation does not write down: Langfuse why an answer that is not streamed ended, and all of several
choices, which are turns that say so.
"""


@pytest.mark.slow
@pytest.mark.parametrize("door", ["wrap", "instrument", "openinference", "openai-v2", "langfuse"])
def test_the_same_calls_are_read_the_same(door: str) -> None:
    command = [sys.executable, "-W", "ignore", "-m", "tests.producers.contract.play", door]
    completed = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert completed.returncode == 0, completed.stderr[-2000:]
    readings = json.loads(completed.stdout.splitlines()[-1])
    assert list(readings) == list(CASES)
    assert readings == {**EXPECTED_READINGS, **LOST_FIELDS.get(door, {})}
