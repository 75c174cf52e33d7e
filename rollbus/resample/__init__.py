"""Requests for more attempts in, attempts made by your agent and recorded out.

Read `attempts` first; `allowance` keeps a client within its budget, `requests` follows the log.
"""

from typing import TYPE_CHECKING

from rollbus.runtime.lazy import lazy_names

if TYPE_CHECKING:
    from rollbus.resample.attempts import Attempt

__all__ = ["Attempt"]

__getattr__ = lazy_names(__name__, {"Attempt": "attempts"})
