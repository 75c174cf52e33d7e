"""The command that users type: the installed console script, run from a folder that is not the checkout.

`python -m rollbus` in the checkout would find the files whatever the installation lacks.
"""

import sys
from pathlib import Path

ROLLBUS = str(Path(sys.prefix) / "bin" / "rollbus")
