"""What a user names as `module:name`: a function of theirs, here or installed."""

import sys
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

from rollbus.runtime.machine import install_command
from rollbus.schemas.errors import ConfigurationError


def load_object(path: str, what: str) -> Any:
    """Return the object at `module:name`, of the current folder or installed; raises ConfigurationError."""
    if not all(path.partition(":")):
        raise ConfigurationError(f"{what}: {path!r} must be written as module:name")
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))  # as `python -m` does
    try:
        return resolve_name(path)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] == path.partition(":")[0].partition(".")[0]:
            raise ConfigurationError(
                f"{what}: there is no module {error.name} in {Path.cwd()}, and none is installed in {sys.executable}, "
                "which runs this command; run it in the folder of the module, or install its package there"
            ) from error
        raise ConfigurationError(
            f"{what}: {path!r} needs {error.name}, which {sys.executable}, the Python that runs this command, does not "
            f"have; run: {install_command(error.name or '')}"
        ) from error
    except Exception as error:  # a module of the user's may raise anything
        problem = f"{type(error).__name__}: {error}"
        raise ConfigurationError(
            f"{what}: {path!r} cannot be imported ({problem}); it must be here or installed"
        ) from error
