"""Begin recording in a Python process of `rollbus capture`, behind the `sitecustomize` that it has without us.

Python prints what this raises and goes on. So that a program sees nothing of ours, only what the other one raises gets
there.
"""

import os
import sys
from contextlib import suppress
from importlib import import_module
from pathlib import Path

OWN_FOLDER = os.path.dirname(os.path.abspath(__file__))


def import_next() -> None:
    """Import the `sitecustomize` that our folder hides; raises what that raises."""
    sys.path[:] = [path for path in sys.path if os.path.abspath(path) != OWN_FOLDER]
    own_module = sys.modules.pop("sitecustomize")
    try:
        import_module("sitecustomize")
    except ImportError as error:
        sys.modules["sitecustomize"] = own_module
        if error.name != "sitecustomize":  # there is one, and it lacks something
            raise


def begin(folder: Path) -> None:
    """Begin, or leave a note why not: this Python may be one that has no rollbus."""
    try:
        from rollbus.producers.startup.begin import begin as begin_recording

        begin_recording(folder)
    except ModuleNotFoundError as error:
        import shlex  # a program that is recorded does not wait for it

        remedy = f"run: {shlex.quote(sys.executable)} -m pip install {error.name}"
        leave_note(folder, f"{sys.executable}, which runs the program, has no package {error.name}; {remedy}")
    except Exception as error:
        leave_note(folder, f"{sys.executable}: {type(error).__name__}: {error}")


def leave_note(folder: Path, text: str) -> None:
    """Leave a line for the command that started the program."""
    with suppress(OSError):
        (folder / f"failed-{os.getpid()}").write_text(text)


if (folder := os.environ.get("ROLLBUS_CAPTURE")) is not None:
    try:
        import_next()
    finally:  # Python prints what the other one raises, and starts the program all the same
        begin(Path(folder))
