"""GRPO's formulas: pure functions on tensors, results with named fields, sources in the docstrings.

ratios          how much likelier a token or sequence is under the current policy
token_losses    cispo, ppo with dual clip, dppo, importance sampling, dro: per token
corrections     truncated or masked importance weights; masks of far and of stale negative sequences
advantage_scale advantages on the scale of a whole batch
penalties       KL to a reference (k1 in the reward, k3 in the loss) and to the behaviour
aggregation     from tokens to the loss of a step
step_loss       all of them in order, and the sums behind a step's metrics

Everything is flat: axis N runs over tokens, whatever rows they came from; `sequence_N` says which. All losses are
minimised. The update trains the advantages it is given (grouping computed them; they are in the Group record).

    n  current log-prob, carries the gradient       b  behaviour log-prob, as the sampler recorded it
    r  importance ratio exp(n − b)                  f  log-prob under the frozen reference policy
    A  advantage                                    p  log-prob under the proximal policy
    w  weight of a token, mean 1                    sg stop-gradient

What differs from the GRPO paper (Shao et al. 2024, 2402.03300): one optimizer step per batch against the *recorded*
log-probs, so the ratio also corrects staleness; the token mean is over the whole batch, not per answer; no KL term
unless asked for.
"""

from typing import TYPE_CHECKING

from rollbus.runtime.lazy import lazy_names

if TYPE_CHECKING:
    from rollbus.trainer.grpo.advantage_scale import batch_scale
    from rollbus.trainer.grpo.aggregation import divisor, token_weight
    from rollbus.trainer.grpo.corrections import ImportanceWeights, far_sequences, importance_weights, stale_negatives
    from rollbus.trainer.grpo.penalties import behaviour_kl, kl_k1, kl_k3, penalised_advantages
    from rollbus.trainer.grpo.ratios import ratio, sequence_product, sequence_ratio, sequence_sums
    from rollbus.trainer.grpo.step_loss import LossSums, TokenBatch, combine, metrics, policy_loss
    from rollbus.trainer.grpo.token_losses import TokenLoss, cispo, dppo, dro, importance_sampling, ppo

__all__ = [
    "ImportanceWeights",
    "LossSums",
    "TokenBatch",
    "TokenLoss",
    "batch_scale",
    "behaviour_kl",
    "cispo",
    "combine",
    "divisor",
    "dppo",
    "dro",
    "far_sequences",
    "importance_sampling",
    "importance_weights",
    "kl_k1",
    "kl_k3",
    "metrics",
    "penalised_advantages",
    "policy_loss",
    "ppo",
    "ratio",
    "sequence_product",
    "sequence_ratio",
    "sequence_sums",
    "stale_negatives",
    "token_weight",
]

__getattr__ = lazy_names(
    __name__,
    {
        "ImportanceWeights": "corrections",
        "LossSums": "step_loss",
        "TokenBatch": "step_loss",
        "TokenLoss": "token_losses",
        "batch_scale": "advantage_scale",
        "behaviour_kl": "penalties",
        "cispo": "token_losses",
        "combine": "step_loss",
        "divisor": "aggregation",
        "dppo": "token_losses",
        "dro": "token_losses",
        "far_sequences": "corrections",
        "importance_sampling": "token_losses",
        "importance_weights": "corrections",
        "kl_k1": "penalties",
        "kl_k3": "penalties",
        "metrics": "step_loss",
        "penalised_advantages": "penalties",
        "policy_loss": "step_loss",
        "ppo": "token_losses",
        "ratio": "ratios",
        "sequence_product": "ratios",
        "sequence_ratio": "ratios",
        "sequence_sums": "ratios",
        "stale_negatives": "corrections",
        "token_weight": "aggregation",
    },
)
