"""Run an agent once and look at what was recorded: by which hook, with which verdict, and what to add.

Nothing is sent: the events stay in memory. The agent runs in one episode, as in `with rb.episode(…)`.
"""

import asyncio
import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from rollbus.producers import MemorySink, init
from rollbus.producers.integrations.instrument import instrument
from rollbus.schemas.records.events import TurnRecorded

FLUSH_S = 30.0
UNSEEN: Mapping[str, str] = {
    "botocore": "boto3",
    "cohere": "cohere",
    "ollama": "ollama",
    "vllm": "vllm",
}
"""Libraries whose API is not recorded: the module that shows that one is used, and its name."""


@dataclass(slots=True)
class Examination:
    """What one run of an agent shows."""

    turns: list[tuple[TurnRecorded, str]] = field(default_factory=list)
    """Each with the hook that saw the call."""
    error: BaseException | None = None
    """Of the agent."""
    patched: tuple[str, ...] = ()
    notes: list[str] = field(default_factory=list)
    """What else is missing, and what to add."""

    @property
    def is_whole(self) -> bool:
        """Whether every call that is known of can be trained."""
        return bool(self.turns) and not self.notes and all(turn.trainable for turn, _ in self.turns)


def examine_capture(agent: Callable[[], Any]) -> Examination:
    """Run the agent in one episode; what it raises is kept."""
    examination = Examination()
    recorder = init(sink=MemorySink(), producer="doctor")
    recorder.outbox.on_turn = lambda turn, hook: examination.turns.append((turn, hook))
    patches = instrument(recorder)
    try:
        with recorder.episode(task="doctor"):
            result = agent()
            if inspect.isawaitable(result):
                asyncio.run(_wait(result))
    except SystemExit as error:  # a program that ends as its own process
        examination.error = error if error.code else None
    except Exception as error:  # the user's own program
        examination.error = error
    recorder.close(FLUSH_S)
    examination.patched = patches.names
    patches.undo()
    examination.notes = [f"{name} could not be patched: {error}" for name, error in patches.failed.items()]
    examination.notes += [f"{name} {version} is newer than was tried" for name, version in patches.untried.items()]
    examination.notes += _describe_missed(recorder.counters)
    for module, name in UNSEEN.items():
        if module in sys.modules:
            examination.notes.append(f"{name} is imported, and has no hook: report its answers with episode.turn(…)")
    return examination


async def _wait(result: Any) -> Any:
    return await result


def _describe_missed(counters: Mapping[str, int]) -> list[str]:
    notes = []
    if count := counters.get("calls_outside_episode"):
        notes.append(f"{count} calls were outside of the episode: start what makes them with rb.bind(…)")
    if count := counters.get("turns_suppressed"):
        notes.append(f"{count} answers came after the episode's end: wait for them within it")
    notes += [f"{count} failures of ours: {name}" for name, count in counters.items() if name.startswith("hook_errors")]
    return notes
