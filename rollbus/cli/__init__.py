"""The command line: `rollbus NOUN VERB`. Each noun is one module in `commands`, loaded only when it is used."""

import gc
import os
import sys

from rollbus.runtime.http.loopback import ask_loopback_directly
from rollbus.runtime.machine import install_command
from rollbus.streams.worker.process import OBJECTS_BETWEEN_COLLECTIONS
from rollbus.terminal.silence import watch_silence


def main() -> None:
    """Run the command line; without its libraries, say which extra brings them."""
    watch_silence()
    # What is imported stays; at the default of 700, a tenth of a model server's start went into looking through it.
    gc.set_threshold(OBJECTS_BETWEEN_COLLECTIONS)
    try:
        from rollbus.cli.root import rollbus
    except ModuleNotFoundError as error:
        if error.name not in ("click", "rich", "yaml"):
            raise
        remedy = install_command("'rollbus[cli]'")
        sys.exit(f"rollbus: the command line is not installed in {sys.executable}; run: {remedy}")
    ask_loopback_directly(os.environ)
    os.umask(0o077)  # what rollbus writes holds prompts, weights and passwords
    rollbus()
