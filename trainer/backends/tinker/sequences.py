"""A batch → the sequences and the loss that a Tinker service is given, token for token as they were recorded.

Pure. Turns of one history that continue one another become one sequence. The service sums its loss over tokens, so the
weights and the divisor of `aggregation` are in the advantages, to which its losses are proportional. What a service
cannot do is refused by name.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from rollbus.schemas.errors import UnavailableError
from rollbus.schemas.records.tokens import decode_logprobs, decode_token_ids
from rollbus.trainer.backends.protocol import TrainConfig, TrainTrajectory, TurnTokens
from rollbus.trainer.backends.tinker.service import AdamSettings, LossName, LossSequence, ServiceLoss
from rollbus.trainer.grpo.advantage_scale import reward_scale
from rollbus.trainer.grpo.aggregation import divisor, token_weight

LOSSES: dict[str, LossName] = {
    "importance_sampling": "importance_sampling",
    "ppo": "ppo",
    "cispo": "cispo",
    "dro": "dro",
}


@dataclass(frozen=True, slots=True)
class SampledSpan:
    """Targets of a sequence that one turn sampled."""

    start: int
    end: int
    turn: TurnTokens


@dataclass(frozen=True, slots=True)
class TrainSequence:
    """Tokens that were sampled on top of one another, with what is known of each."""

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


def make_sequences(
    trajectories: Sequence[TrainTrajectory], config: TrainConfig
) -> tuple[list[TrainSequence], ServiceLoss]:
    """Return what is sent: the sequences with their advantages weighed, and the loss on the same scale."""
    loss = make_loss(config)
    drafts = [(trajectory, draft) for trajectory in trajectories for draft in join_turns(trajectory.turns)]
    tokens = sum(draft.sampled for _, draft in drafts)
    weights = _weigh_trajectories(trajectories, config)
    mean = sum(weights[trajectory.trajectory_id] * draft.sampled for trajectory, draft in drafts) / tokens
    whole = divisor(config.aggregation, tokens=tokens, sequences=len(drafts), constant_tokens=config.aggregation_tokens)
    kind = config.advantage_scale if config.distill is None else "none"  # distillation has scaled its rewards
    scale = reward_scale(kind, [trajectory.reward for trajectory in trajectories])
    if loss.name == "dro":  # not proportional to the advantage: its pull is brought to the same scale
        loss = ServiceLoss(loss.name, {"beta": loss.bounds["beta"] / whole})
    return [
        draft.finish(trajectory, scale * weights[trajectory.trajectory_id] / mean / whole)
        for trajectory, draft in drafts
    ], loss


@dataclass(slots=True)
class SequenceDraft:
    """A sequence that grows by turns."""

    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    """One for each token; 0 where it was not sampled."""
    spans: list[SampledSpan] = field(default_factory=list)

    @property
    def sampled(self) -> int:
        """Number of sampled tokens."""
        return sum(span.end - span.start for span in self.spans)

    def continues(self, prompt: Sequence[int]) -> bool:
        """Say whether a prompt begins with all that is here."""
        return list(prompt[: len(self.token_ids)]) == self.token_ids

    def add(self, turn: TurnTokens, prompt: Sequence[int]) -> None:
        """Append what the prompt adds, and what was sampled."""
        added = prompt[len(self.token_ids) :]
        completion = decode_token_ids(turn.completion_token_ids)
        self.token_ids += [*added, *completion]
        self.logprobs += [*[0.0] * len(added), *decode_logprobs(turn.logprobs)]
        end = len(self.token_ids) - 1  # targets begin with the second token
        self.spans.append(SampledSpan(end - len(completion), end, turn))

    def finish(self, trajectory: TrainTrajectory, scale: float) -> TrainSequence:
        """Return the sequence, with its turn's advantage on each sampled token."""
        advantages = [0.0] * (len(self.token_ids) - 1)
        for span in self.spans:
            advantages[span.start : span.end] = [
                scale * advantage for advantage in trajectory.token_advantages_of(span.turn)
            ]
        sequence = LossSequence(
            tuple(self.token_ids[:-1]), tuple(self.token_ids[1:]), tuple(self.logprobs[1:]), tuple(advantages)
        )
        return TrainSequence(sequence, tuple(self.spans))


def join_turns(turns: Iterable[TurnTokens]) -> list[SequenceDraft]:
    """Return the sequences of a trajectory: one for each history, and one more where a prompt does not continue it."""
    drafts: list[SequenceDraft] = []
    newest: dict[int, SequenceDraft] = {}
    for turn in turns:
        prompt = decode_token_ids(turn.prompt_token_ids)
        draft = newest.get(turn.history)
        if draft is None or not draft.continues(prompt):
            draft = newest[turn.history] = SequenceDraft()
            drafts.append(draft)
        draft.add(turn, prompt)
    return drafts


def _weigh_trajectories(trajectories: Iterable[TrainTrajectory], config: TrainConfig) -> dict[str, float]:
    """Return the weight of each trajectory's tokens, by its id, before they are brought to mean 1."""
    tokens = {
        trajectory.trajectory_id: sum(len(turn.completion_token_ids) // 4 for turn in trajectory.turns)
        for trajectory in trajectories
    }
    of_group: dict[str, int] = {}
    for trajectory in trajectories:
        of_group[trajectory.group_id] = of_group.get(trajectory.group_id, 0) + tokens[trajectory.trajectory_id]
    return {
        trajectory.trajectory_id: token_weight(
            config.aggregation,
            trajectory_tokens=tokens[trajectory.trajectory_id],
            group_tokens=of_group[trajectory.group_id],
        )
        for trajectory in trajectories
    }
