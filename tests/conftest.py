"""How Hypothesis runs here: by no clock, since machines are shared, and with the same examples on every run of CI."""

import os

from hypothesis import HealthCheck, settings

settings.register_profile(
    "rollbus",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    print_blob=True,
    derandomize=bool(os.environ.get("CI")),
)
settings.load_profile("rollbus")
