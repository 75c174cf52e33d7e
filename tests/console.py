"""The command that users type: the installed console script, run from a folder that is not the checkout.

`python -m rollbus` in the checkout would find the files whatever the installation lacks.
"""

import re
import sys
from pathlib import Path

ROLLBUS = str(Path(sys.prefix) / "bin" / "rollbus")


def without_settings(output: str) -> str:
    """Return what a command printed after the line that says which settings it read, with no line about waiting."""
    first, _, rest = re.sub(r"^(importing|rollbus) .*: \d+ s so far\n", "", output, flags=re.MULTILINE).partition("\n")
    assert first.startswith("settings: "), output
    return rest
