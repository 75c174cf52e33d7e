"""ART's LocalBackend: its tokenising by recorded ids and its packing, with the advantages that grouping computed.

ART computes its own advantages and divides a whole batch by their mean size, so that even rounding noise trains at full
strength. Here the given ones go through its packing and the division is undone; `art` mode changes nothing.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from art.local import LocalBackend
from art.preprocessing.pack import PackedTensors, packed_tensors_from_tokenized_results
from art.preprocessing.tokenize import TokenizedResult, assemble_vllm_training_sequences
from art.trajectories import LegacyHistory, TrajectoryGroup
from torch import Tensor

from rollbus.schemas.errors import RejectedError
from rollbus.schemas.records.tokens import encode_logprobs
from rollbus.trainer.backends.art_terms.groups import TRAJECTORY_ID, art_groups
from rollbus.trainer.backends.protocol import TrainTrajectory, TurnTokens
from rollbus.trainer.backends.sequences import weigh_trajectories
from rollbus.trainer.grpo.aggregation import Aggregation

ROUNDING_OF_LENGTH = 256
"""Packed rows are a multiple of this many tokens; ART's 2048 is for kernels that small models do not need."""


@dataclass(frozen=True, slots=True)
class GivenBatch:
    """A batch whose advantages are given."""

    trajectories: tuple[TrainTrajectory, ...]
    aggregation: Aggregation = "token_mean"


class RollbusBackend(LocalBackend):
    """LocalBackend that trains, unless `given` is None, on the caller's advantages."""

    def __init__(self, path: str, tokenizer: Any, *, packing: bool) -> None:
        super().__init__(in_process=True, path=path)
        self._supports_result_packing = packing  # else a row per trajectory
        self._tokenizer = tokenizer
        self.given: GivenBatch | None = None
        """For the next call of `train`, which gets the same trajectories as ART's."""

    def forget_service(self) -> None:
        """Let the next call make a new service of ART's: it closes itself if training fails."""
        self._services.clear()

    async def _advance_skipped_step(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        """Do nothing: ART would copy the weights to a new step and call it trained."""
        return {}

    def _get_packed_tensors(
        self, model: Any, trajectory_groups: list[TrajectoryGroup], *args: Any, **kwargs: Any
    ) -> PackedTensors | None:
        if self.given is None:
            return super()._get_packed_tensors(model, trajectory_groups, *args, **kwargs)
        trajectories = self.given.trajectories
        results = self._results(trajectory_groups, self.given)
        if not results or not any(result.advantage for result in results):
            return None
        longest = max(len(result.token_ids) for result in results)
        limit = self._model_max_sequence_length(model)
        if longest > limit:
            raise RejectedError(f"a row of {longest} tokens does not fit {limit}; drop it before the batch is formed")
        row_length = min(-(-longest // ROUNDING_OF_LENGTH) * ROUNDING_OF_LENGTH, limit)

        def pack(rows: list[TokenizedResult]) -> PackedTensors:
            return packed_tensors_from_tokenized_results(
                rows,
                row_length,
                pad_token_id=self._tokenizer.eos_token_id,
                truncate_long_results=False,
                pack_results=self._supports_result_packing,
            )

        packed = undo_scaling(pack(results), results)
        if any(trajectory.has_turn_advantages for trajectory in trajectories):
            highest = max(advantage for trajectory in trajectories for advantage in trajectory.advantages)
            twins = pack(self._results(art_groups(make_advantage_twins(trajectories, highest)), self.given))
            advantages = (place_column(packed, twins) + highest).to(packed["advantages"].dtype)
            packed["advantages"] = torch.where(packed["assistant_mask"].bool(), advantages, packed["advantages"])
        return packed

    def _results(self, groups: list[TrajectoryGroup], given: GivenBatch) -> list[TokenizedResult]:
        advantages = {
            trajectory.trajectory_id: max(trajectory.advantages, key=abs) for trajectory in given.trajectories
        }
        weights = weigh_trajectories(given.trajectories, given.aggregation)
        return [
            result
            for prompt_id, group in enumerate(groups)
            for result in group_results(self._tokenizer, prompt_id, group, advantages, weights)
        ]


def group_results(
    tokenizer: Any,
    prompt_id: int,
    group: TrajectoryGroup,
    advantage_by_id: Mapping[str, float],
    weight_by_id: Mapping[str, float],
) -> list[TokenizedResult]:
    """ART's token rows of one group, each with its trajectory's advantage and weight."""
    results: list[TokenizedResult] = []
    for trajectory in group.trajectories:
        trajectory_id = str(trajectory.metadata[TRAJECTORY_ID])
        rows = assemble_vllm_training_sequences(
            tokenizer=tokenizer,
            histories=[
                LegacyHistory(messages_and_choices=trajectory.messages_and_choices),
                *trajectory.additional_histories,
            ],
            advantage=advantage_by_id[trajectory_id],
            allow_training_without_logprobs=False,
            trajectory=trajectory,
        )
        for row in rows:
            row.weight = weight_by_id[trajectory_id]
        results.extend(rows)
    shared = _shared_prefix(results)
    for row in results:
        row.prompt_id, row.prompt_length = prompt_id, shared
    return results


def undo_scaling(packed: PackedTensors, results: list[TokenizedResult]) -> PackedTensors:
    """Multiply ART's division by the mean |advantage| back out.

    It is one positive number for the whole batch, so the largest advantage shows it.
    """
    largest = max(abs(result.advantage) for result in results)
    scaled = float(packed["advantages"].abs().max())
    if scaled > 0:
        packed["advantages"] *= largest / scaled
    return packed


def make_advantage_twins(trajectories: Iterable[TrainTrajectory], highest: float) -> list[TrainTrajectory]:
    """Return the same tokens with their advantages instead of log-probs, less the highest: none is above 0.

    ART's packing carries one advantage for each sequence, and a log-prob for each token.
    """

    def filled(trajectory: TrainTrajectory, turn: TurnTokens) -> TurnTokens:
        values = [advantage - highest for advantage in trajectory.token_advantages_of(turn)]
        return replace(turn, logprobs=encode_logprobs(values))

    return [
        replace(trajectory, turns=tuple(filled(trajectory, turn) for turn in trajectory.turns))
        for trajectory in trajectories
    ]


def place_column(packed: PackedTensors, twins: PackedTensors) -> Tensor:
    """The twins' log-prob column: what is known of each sampled token, at its place in `packed`."""
    for name in ("tokens", "group_ids", "assistant_mask"):
        if not torch.equal(packed[name], twins[name]):
            raise RejectedError("ART packed the same batch twice in two ways; its columns cannot be placed")
    return twins["logprobs"]


def _shared_prefix(results: list[TokenizedResult]) -> int:
    """Tokens that all rows of the group begin with, ending one before the first sampled one."""
    if not results:
        return 0
    first, *others = [row.token_ids for row in results]
    length = 0
    for position, token_id in enumerate(first):
        if any(position >= len(row) or row[position] != token_id for row in others):
            break
        length += 1
    return max(min(length, *(row.assistant_mask.index(1) for row in results)) - 1, 0)
