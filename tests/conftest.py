"""How Hypothesis runs here: by no clock, since machines are shared, and with the same examples on every run of CI.

And Ctrl-C is heard, also by what tests start: a shell's job in the background is made to ignore it, and so are its own.
"""

import os
import signal

from hypothesis import HealthCheck, settings

settings.register_profile(
    "rollbus",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    print_blob=True,
    derandomize=bool(os.environ.get("CI")),
)
settings.load_profile("rollbus")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
