"""How long the answer is, between 0 and 1: 1 up to `target` sampled tokens, falling to 0 at `limit`.

Sampled tokens are those of all turns; without `limit` it is twice the target.
"""

from rollbus.schemas.records.tokens import token_count
from rollbus.schemas.records.trajectories import Trajectory
from rollbus.streams.rewards.contract import RewardContext


def length(trajectory: Trajectory, context: RewardContext) -> float | None:
    """Return the share of the allowance that is left; None without sampled tokens."""
    sampled = sum(token_count(history.logprobs) for history in trajectory.histories)
    if not sampled:
        return None
    target = float(context.options["target"] or 0)
    limit = float(context.options.get("limit") or 2 * target)
    if limit <= target:
        raise ValueError(f"length: limit {limit} must be above target {target}")
    return min(1.0, max(0.0, (limit - sampled) / (limit - target)))
