"""How Hypothesis runs here: no deadline per example, since machines are shared; the same examples on every run of CI."""

import os

from hypothesis import settings

settings.register_profile("rollbus", deadline=None, print_blob=True, derandomize=bool(os.environ.get("CI")))
settings.load_profile("rollbus")
