"""GRPO's formulas: pure functions on tensors, results with named fields, sources in the docstrings.

ratios        how much likelier a token or sequence is under one policy than under another; KL to a reference (k1 in the
              reward, k3 in the loss) and to the behaviour; importance weights, masks of far and of stale sequences
token_losses  cispo, ppo with dual clip, dppo, importance sampling, dro: per token
aggregation   from tokens to the loss of a step; advantages on the scale of a whole batch
step_loss     all of them in order, and the sums behind a step's metrics

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
