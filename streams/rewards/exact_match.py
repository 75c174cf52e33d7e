"""1 where the last completion is the expected text, else 0.

The expected text is the option `answer`, or the episode's label named by `label` (`answer` by default).
"""

from rollbus.schemas.records.trajectories import Trajectory
from rollbus.streams.rewards.contract import RewardContext, last_text


def exact_match(trajectory: Trajectory, context: RewardContext) -> float | None:
    """Compare without surrounding space, and without case where `ignore_case`; None without an expected text."""
    options = context.options
    expected = options.get("answer")
    if expected is None:
        expected = trajectory.labels.get(str(options.get("label") or "answer"))
    if expected is None:
        return None
    answer, expected_text = last_text(trajectory).strip(), str(expected).strip()
    if options.get("ignore_case"):
        answer, expected_text = answer.casefold(), expected_text.casefold()
    return float(answer == expected_text)
