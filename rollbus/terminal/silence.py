"""Since when a command has written nothing, and a line that says what it is at.

Libraries such as torch or openai take seconds to import, on a busy machine half a minute, and any command may need one
at any point. So a thread that starts before the first of them looks now and then at what the main thread imports, and
whether a command still owes its first line. A library that keeps the interpreter to itself is named once it lets go.
Only the standard library is imported here, and no asyncio: that takes long itself.
"""

import importlib._bootstrap
import os
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import FrameType

QUIET_S = 3.5
"""Between two plain lines: nothing is silent for five seconds, and what is over sooner writes none."""
BETWEEN_S = 1.0
"""Of two pieces of work with less between them the second goes on with the silence of the first."""
LOOK_S = 1.0
"""Between two looks at the main thread: with it a line comes after five seconds at the latest."""
OURS = "rollbus"


@dataclass(slots=True)
class Silence:
    """Since when nothing was written; pieces of work that follow one another share it."""

    since_s: float = 0.0
    ended_s: float = -BETWEEN_S
    open_displays: int = 0
    """Pieces of work that are shown now: they write the lines, whatever is imported in them."""
    command: str = ""
    """What was typed; empty before it begins, and once it has begun to answer or to log."""

    def begin(self, now_s: float) -> None:
        """Begin a piece of work."""
        if now_s - self.ended_s > BETWEEN_S:
            self.since_s = now_s

    def wait_s(self, now_s: float) -> float:
        """Return how long it may go on."""
        return max(0.0, self.since_s + QUIET_S - now_s)


SILENCE = Silence()
"""Of this process."""


@dataclass(slots=True)
class SilenceWatch:
    """What the main thread is at, look by look."""

    silence: Silence
    began_s: float | None = None
    """When it began; None while it is at nothing that wants a line."""

    def look(self, frame: FrameType | None, now_s: float) -> str | None:
        """Return the line that is due, given where the main thread is."""
        activity = "" if self.silence.open_displays else self._describe(frame)
        if not activity:
            self.began_s = None
            return None
        if self.began_s is None:
            self.silence.begin(now_s)
            self.began_s = self.silence.since_s
        self.silence.ended_s = now_s  # what comes next goes on with this silence, although nothing says when it begins
        if self.silence.wait_s(now_s):
            return None
        self.silence.since_s = now_s
        return f"{activity}: {now_s - self.began_s:.0f} s so far"

    def _describe(self, frame: FrameType | None) -> str:
        package = find_import(frame)
        return f"importing {package}" if package else self.silence.command


def find_import(frame: FrameType | None) -> str | None:
    """Return the package that is being imported where a thread is: the outermost that is not ours, else ours."""
    package = None
    while frame is not None:
        if frame.f_code is _FIND_AND_LOAD:
            name = frame.f_locals["name"].partition(".")[0]
            package = name if name != OURS or package is None else package
        frame = frame.f_back
    return package


_FIND_AND_LOAD = importlib._bootstrap._find_and_load.__code__  # type: ignore[attr-defined]
"""Every import that is not over yet has a frame of it."""


def watch_silence() -> None:
    """Write a line to stderr whenever the main thread has been silent for some time; call it before any import.

    Programs that read JSON lines wait for nothing, and get none.
    """
    if _writes_json(sys.argv, os.environ):
        return
    watch, main = SilenceWatch(SILENCE, began_s=time.monotonic()), threading.main_thread().ident
    SILENCE.since_s = time.monotonic()

    def run() -> None:
        while True:
            time.sleep(LOOK_S)
            if line := watch.look(sys._current_frames().get(main or 0), time.monotonic()):
                print(line, file=sys.stderr, flush=True)

    threading.Thread(target=run, name="silence", daemon=True).start()


def _writes_json(arguments: Sequence[str], environment: Mapping[str, str]) -> bool:
    words = " ".join(arguments).replace("=", " ")
    return "--log-format json" in words or environment.get("ROLLBUS_LOG_FORMAT") == "json"
