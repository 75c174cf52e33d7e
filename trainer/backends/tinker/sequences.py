"""A batch → the sequences and the loss that a Tinker service is given, token for token as they were recorded.

Pure. The service sums its loss over tokens, so the weights and the divisor of `aggregation` are in the advantages, to
which its losses are proportional. What a service cannot do is refused by name.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from rollbus.schemas.errors import UnavailableError
from rollbus.schemas.records.tokens import decode_logprobs, decode_token_ids
from rollbus.trainer.backends.protocol import TrainTrajectory
from rollbus.trainer.backends.sequences import (
    SampledSpan,
    TokenSequence,
    find_reward_scale,
    make_sequences,
    weigh_trajectories,
)
from rollbus.trainer.backends.tinker.service import AdamSettings, LossName, LossSequence, ServiceLoss
from rollbus.trainer.grpo.aggregation import divisor
from rollbus.trainer.train_config import TrainConfig

LOSSES: dict[str, LossName] = {
    "importance_sampling": "importance_sampling",
    "ppo": "ppo",
    "cispo": "cispo",
    "dro": "dro",
}


@dataclass(frozen=True, slots=True)
class TrainSequence:
    """A sequence as it is sent, and which of its targets were sampled."""

    sequence: LossSequence
    spans: tuple[SampledSpan, ...]


def make_loss(config: TrainConfig) -> ServiceLoss:
    """Return the service's loss; UnavailableError names what no Tinker service has: the batch is not at fault."""
    if refused := find_unsupported(config):
        raise UnavailableError(
            f"a Tinker service does not know {', '.join(refused)}; take it out of `trainer: train:`, or train with "
            "`rollbus art-server`"
        )
    if config.loss == "ppo":
        bounds = {"clip_low_threshold": 1 - config.epsilon, "clip_high_threshold": 1 + config.epsilon_high}
    elif config.loss == "cispo":
        bounds = {"clip_low_threshold": config.ratio_min, "clip_high_threshold": config.ratio_max}
    else:
        bounds = {"beta": config.dro_beta} if config.loss == "dro" else {}
    return ServiceLoss(LOSSES[config.loss], bounds)


def find_unsupported(config: TrainConfig) -> list[str]:
    """Return the settings that a Tinker service cannot honour, as `name: value`."""
    same_for_all = config.aggregation in ("token_mean", "constant")
    is_unsupported = {
        f"loss: {config.loss}": config.loss not in LOSSES,
        f"loss: dro with aggregation: {config.aggregation}": config.loss == "dro" and not same_for_all,
        f"dual_clip: {config.dual_clip}": config.loss == "ppo" and config.dual_clip is not None,
        f"advantages: {config.advantages}": config.advantages != "given",
        f"ratio_level: {config.ratio_level}": config.ratio_level != "token",
        f"importance_correction: {config.importance_correction}": config.importance_correction != "none",
        f"sequence_mask: {config.sequence_mask}": config.sequence_mask != "none",
        f"kl_coefficient: {config.kl_coefficient:g}": bool(config.kl_coefficient),
        f"behaviour_kl_coefficient: {config.behaviour_kl_coefficient:g}": bool(config.behaviour_kl_coefficient),
        f"off_policy_mask_threshold: {config.off_policy_mask_threshold}": config.off_policy_mask_threshold is not None,
        f"entropy_bonus: {config.entropy_bonus:g}": bool(config.entropy_bonus),
    }
    return [name for name, unsupported in is_unsupported.items() if unsupported]


def make_optimizer(config: TrainConfig) -> AdamSettings:
    """Return the step's AdamW."""
    return AdamSettings(
        config.learning_rate, config.adam_beta1, config.adam_beta2, config.weight_decay, config.max_grad_norm
    )


def make_loss_sequences(
    trajectories: Sequence[TrainTrajectory], config: TrainConfig
) -> tuple[list[TrainSequence], ServiceLoss]:
    """Return what is sent: the sequences with their advantages weighed, and the loss on the same scale."""
    loss = make_loss(config)
    sequences = make_sequences(trajectories, weigh_trajectories(trajectories, config.aggregation))
    tokens = sum(sequence.sampled_tokens for sequence in sequences)
    whole = divisor(
        config.aggregation, tokens=tokens, sequences=len(sequences), constant_tokens=config.aggregation_tokens
    )
    scale = (
        find_reward_scale(trajectories, config) if config.distill is None else 1.0
    )  # else rewards are scaled already
    if loss.name == "dro":  # not proportional to the advantage: its pull is brought to the same scale
        loss = ServiceLoss(loss.name, {"beta": loss.bounds["beta"] / whole})
    return [_shift(sequence, scale * sequence.weight / whole) for sequence in sequences], loss


def _shift(sequence: TokenSequence, scale: float) -> TrainSequence:
    """Return tokens and targets, which begin with the second token, with scaled advantages where they were sampled."""
    token_ids = decode_token_ids(sequence.token_ids)
    logprobs, advantages = [0.0] * (len(token_ids) - 1), [0.0] * (len(token_ids) - 1)
    targets = tuple(SampledSpan(span.start - 1, span.end - 1, span.turn) for span in sequence.spans)
    for span in targets:
        logprobs[span.start : span.end] = decode_logprobs(span.turn.logprobs)
        of_turn = sequence.trajectory.token_advantages_of(span.turn)
        advantages[span.start : span.end] = [scale * advantage for advantage in of_turn]
    return TrainSequence(
        LossSequence(tuple(token_ids[:-1]), tuple(token_ids[1:]), tuple(logprobs), tuple(advantages)), targets
    )
