"""The command that users type: the installed console script, run from a folder that is not the checkout.

`python -m rollbus` in the checkout would find the files whatever the installation lacks.
"""

import sys
from pathlib import Path

ROLLBUS = str(Path(sys.prefix) / "bin" / "rollbus")


def without_settings(output: str) -> str:
    """Return what a command printed after its first line, which says which settings it read."""
    first, _, rest = output.partition("\n")
    assert first.startswith("settings: "), output
    return rest
