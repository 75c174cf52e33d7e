"""What one GRPO update does, in the settings and in the body of a request to a backend."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator


class FrozenSettings(BaseModel):
    """Base of every section: frozen, strict about names, and of finite numbers."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Distillation(FrozenSettings):
    """Learn from hints: each token's advantage is w_r · A + w_d · (its log-prob with the hint − the recorded one)."""

    weight: float = Field(default=1.0, gt=0)
    """w_d: of the difference of log-probs, which is bounded to 5 nats either way; 0 for a turn without a hint."""
    reward_weight: float = Field(default=1.0, ge=0)
    """w_r: of the advantage by rewards. 0 learns from hints alone, and drops what has none."""


class TrainConfig(FrozenSettings):
    """What one GRPO update does, in the settings and in the body of a request."""

    learning_rate: float = Field(default=1e-5, gt=0)
    loss: Literal["cispo", "ppo", "dppo", "importance_sampling", "dro"] = "cispo"
    """Their formulas: docs/losses.md."""
    advantages: Literal["given", "art"] = "given"
    """`given` trains on `TrainTrajectory.advantage`; `art` computes and scales them as ART does."""
    distill: Distillation | None = None
    """Learn from what users said after a turn; null learns from rewards alone."""
    advantage_scale: Literal["none", "batch_std"] = "none"
    """`batch_std` divides given advantages by the unbiased deviation of the rewards in the batch."""
    ratio_min: float = Field(default=0.0, ge=0)
    """cispo: lower bound of the detached importance ratio."""
    ratio_max: float = Field(default=5.0, gt=0)
    """cispo: upper bound of the detached importance ratio."""
    epsilon: float = Field(default=0.2, gt=0, le=1)
    """ppo: ratios below 1 − epsilon add no gradient for negative advantages."""
    epsilon_high: float = Field(default=0.28, gt=0)
    """ppo: ratios above 1 + epsilon_high add no gradient for positive advantages."""
    dual_clip: float | None = Field(default=3.0, gt=1)
    """ppo: bound on the loss of a negative advantage, in units of it; None for no bound."""
    probability_delta: float = Field(default=0.2, gt=0, le=1)
    """dppo: a token whose probability has moved further than this, the way its advantage pushes, adds no gradient."""
    dro_beta: float = Field(default=0.05, ge=0)
    """dro: pull towards the behaviour policy, per token, in units of an advantage."""
    ratio_level: Literal["token", "sequence"] = "token"
    """`sequence` takes the exponential of the sequence's mean log-ratio for each of its tokens (GSPO)."""
    importance_correction: Literal["none", "token_truncate", "token_mask", "sequence_truncate", "sequence_mask"] = (
        "none"
    )
    """Weight tokens or sequences by current over behaviour probability instead of leaving it to the loss's ratio."""
    importance_cap: float = Field(default=2.0, gt=0)
    """Of that weight: what exceeds it is truncated to it, or masked."""
    importance_floor: float = Field(default=0.0, ge=0)
    """Of that weight: what lies below is raised to it, or masked. IcePop is `token_mask` from 0.5 to 5."""
    sequence_mask: Literal["none", "geometric_mean", "product", "k1", "k3"] = "none"
    """Leave out sequences whose tokens have moved too far from the behaviour policy, as measured so."""
    sequence_mask_bounds: tuple[float, float] | None = None
    """Least and greatest measure of a sequence that trains."""
    kl_coefficient: float = Field(default=0.0, ge=0)
    """Of the KL to the reference version; 0 needs no reference."""
    kl_estimator: Literal["k1", "k3"] = "k1"
    """`k1` is subtracted from the advantages, centred; `k3` is added to the loss."""
    kl_reference_version: int = Field(default=0, ge=0)
    """0 is the base model."""
    behaviour_kl_coefficient: float = Field(default=0.0, ge=0)
    """Of the squared log-ratio to the behaviour policy, in the loss."""
    aggregation: Literal["token_mean", "trajectory_mean", "prompt_mean", "constant"] = "token_mean"
    """What counts equally: tokens, trajectories, groups; `constant` divides by sequences · aggregation_tokens."""
    aggregation_tokens: int | None = Field(default=None, gt=0)
    """constant: tokens that every sequence counts as."""
    off_policy_mask_threshold: float | None = None
    """Drop sequences of negative advantage whose mean (behaviour − current) log-prob exceeds this."""
    entropy_bonus: float = 0.0
    """Coefficient of the mean entropy of the tokens' distributions, which the loss is lowered by."""
    max_grad_norm: float = Field(default=1.0, gt=0)
    """Longer gradients are scaled to it."""
    adam_beta1: float = Field(default=0.9, ge=0, lt=1)
    adam_beta2: float = Field(default=0.99, ge=0, lt=1)
    weight_decay: float = Field(default=0.0, ge=0)

    @model_validator(mode="after")
    def _agrees_with_itself(self) -> "TrainConfig":
        if self.aggregation == "constant" and self.aggregation_tokens is None:
            raise ValueError("aggregation `constant` needs aggregation_tokens, the tokens that a sequence counts as")
        if self.advantages == "art" and self.aggregation not in ("token_mean", "trajectory_mean"):
            raise ValueError(
                f"with advantages `art` ART weighs every trajectory alike; `given` goes with {self.aggregation}"
            )
        if self.advantages == "art" and self.distill is not None:
            raise ValueError("distill adds to given advantages; with advantages `art` ART computes its own")
        if self.ratio_min > self.ratio_max:
            raise ValueError(f"ratio_min {self.ratio_min:g} lies above ratio_max {self.ratio_max:g}")
        if self.importance_floor > self.importance_cap:
            raise ValueError(f"importance_floor {self.importance_floor:g} lies above importance_cap")
        low, high = self.sequence_mask_bounds or (0.0, 0.0)
        if low > high or (self.sequence_mask_bounds is None) != (self.sequence_mask == "none"):
            raise ValueError("sequence_mask and sequence_mask_bounds go together; give bounds as [least, greatest]")
        if self.advantages == "art" and self.advantage_scale != "none":
            raise ValueError("advantage_scale divides given advantages; with advantages `art` ART scales its own")
        return self
