"""How open the policy still is: the mean of −log p of the sampled tokens, in nats.

At temperature 1 its average is the entropy per token. It falls towards 0 when a policy collapses into one answer.
"""

from rollbus.schemas.records.tokens import decode_logprobs
from rollbus.schemas.records.trajectories import Trajectory
from rollbus.streams.rewards.contract import RewardContext


def surprisal(trajectory: Trajectory, context: RewardContext) -> float | None:
    """Return the mean over all sampled tokens; None without log-probs."""
    logprobs = [logprob for history in trajectory.histories for logprob in decode_logprobs(history.logprobs)]
    return -sum(logprobs) / len(logprobs) if logprobs else None
