"""What a recorder has recorded, in this process or in a program of its own, and whether a turn of it is whole."""

import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

from rollbus.producers import MemorySink, Recorder
from rollbus.producers.sending.spool import Spool
from rollbus.schemas.codec import decode
from rollbus.schemas.records.events import Event, TurnRecorded
from rollbus.schemas.records.tokens import decode_logprobs, decode_token_ids


def recorded_events(recorder: Recorder, sink: MemorySink) -> list[Event]:
    """The events recorded so far; fails where a hook failed."""
    assert recorder.flush(120)
    assert not [name for name in recorder.counters if name.startswith("hook_errors")], recorder.counters
    return list(sink.records("episode-events"))


def turns(recorder: Recorder, sink: MemorySink) -> list[TurnRecorded]:
    """The turns among them."""
    return [event for event in recorded_events(recorder, sink) if isinstance(event, TurnRecorded)]


def assert_whole(turn: TurnRecorded) -> None:
    """The turn holds exactly what the scripted server sampled."""
    assert turn.trainable, turn.untrainable_reason
    assert list(decode_token_ids(turn.prompt_token_ids or b"")) == [1, 2, 3]
    assert list(decode_token_ids(turn.completion_token_ids or b"")) == [10, 20]
    assert list(decode_logprobs(turn.logprobs or b"")) == [-0.5, -0.25]
    assert (turn.model, turn.policy_version, turn.finish_reason) == ("agent@3", 3, "stop")
    assert turn.completion.content == "Hello there"


def run_program(program: str, *arguments: str | Path) -> "subprocess.CompletedProcess[str]":
    """Run a program of its own to its end."""
    script = [sys.executable, "-W", "ignore", "-c", textwrap.dedent(program), *arguments]
    return subprocess.run(script, capture_output=True, text=True, timeout=120, check=False)


def read_spool(folder: Path) -> list[Event]:
    """Return the events that processes have left on disk."""
    spool = Spool(folder, owner="reader", quota_bytes=1_000_000, fsync=False)
    events: list[Any] = []
    while spool:
        events += [decode(record.value) for record in spool.oldest()]
        spool.discard_oldest()
    spool.close()
    return [event for event in events if isinstance(event, Event)]
