"""On the path of a child process, this gives it another wall clock: years off, and twice as fast."""

import os
import time

OFF_S = float(os.environ.get("OTHER_CLOCK_S", "0"))
_time, _time_ns, _start = time.time, time.time_ns, time.time()


def _other_time() -> float:
    return _start + OFF_S + 2 * (_time() - _start)


def _other_time_ns() -> int:
    return int(_other_time() * 1e9)


if OFF_S:
    time.time, time.time_ns = _other_time, _other_time_ns
