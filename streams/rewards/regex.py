"""1 where the last completion matches the option `pattern`, else 0; `full` asks for the whole text.

The text is cut to its last 20,000 characters: a pattern that backtracks must not hold the worker for long.
"""

import re
from functools import lru_cache

from rollbus.schemas.trajectories import Trajectory
from rollbus.streams.rewards.contract import RewardContext, last_text

MAX_CHARACTERS = 20_000


def regex(trajectory: Trajectory, context: RewardContext) -> float | None:
    """Search the pattern, or match it fully."""
    pattern = _compiled(str(context.options["pattern"]))
    text = last_text(trajectory)[-MAX_CHARACTERS:]
    found = pattern.fullmatch(text) if context.options.get("full") else pattern.search(text)
    return float(found is not None)


@lru_cache(maxsize=256)
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.DOTALL)
