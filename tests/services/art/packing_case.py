"""Packs a batch with ART where that is imported, and writes down what the packed tensors hold."""

import json
import random
from pathlib import Path
from typing import Any

from rollbus.schemas.records.tokens import decode_token_ids, encode_logprobs, encode_token_ids
from rollbus.trainer.art_server.control.old_config import ClientConfig
from rollbus.trainer.backends.protocol import TrainRequest, TrainTrajectory, TurnTokens
from rollbus.trainer.backends.sequences import ArtAdvantages

SIZES = (1, 2, 3, 8)
"""Members of each group, singletons included."""
CHOICES = (
    ArtAdvantages(),
    ArtAdvantages(scale_rewards=False),
    ArtAdvantages(balance=0.3),
    ArtAdvantages(balance=-0.4),
)


def batch() -> TrainRequest:
    """Groups of mixed sizes; some answers in several turns, some in several histories; long shared prompts."""
    chance = random.Random(1)
    trajectories = []
    for group, size in enumerate(SIZES):
        prompt = [chance.randrange(3, 384) for _ in range(90 if group == 3 else 20)]
        for member in range(size):
            turns, shown = [], list(prompt)
            for turn in range(1 + member % 3):
                completion = [chance.randrange(3, 384) for _ in range(2 + chance.randrange(4))]
                logprobs = [-chance.random() * 6 for _ in completion]
                history = turn if member % 2 else 0
                turns.append(
                    TurnTokens(
                        encode_token_ids(shown),
                        encode_token_ids(completion),
                        encode_logprobs(logprobs),
                        0,
                        history,
                        advantage=chance.choice([None, -0.7, 0.0, 1.2]) if group == 3 else None,
                        token_advantages=tuple(chance.uniform(-3, 3) for _ in completion) if group == 2 else (),
                    )
                )
                shown = [*shown, *completion, 5] if member % 2 == 0 else [7 + turn, *shown]
            advantage = chance.choice([-1.7, -0.3, 0.0, 1e-3, 0.9, 2.5])
            trajectories.append(
                TrainTrajectory(f"{group}-{member}", f"{group}", advantage, chance.random(), tuple(turns))
            )
    return TrainRequest("packing", "main", "agent", 0, tuple(trajectories))


def pack(base_model: str, directory: str, aggregation: str, findings: str) -> None:
    """Per sampled token as ART packed it for its own service: id, advantage, weight."""
    from rollbus.trainer.art_server.arts_own.packing import GivenBatch, RollbusBackend
    from rollbus.trainer.art_server.endpoint.tokenizer import load_tokenizer
    from rollbus.trainer.backends.art_terms.groups import art_groups

    backend = RollbusBackend(directory, load_tokenizer(Path(base_model)), packing=True)
    backend.given = GivenBatch(batch().trajectories, aggregation)  # type: ignore[arg-type]
    packed: Any = backend._get_packed_tensors(_model(base_model), art_groups(batch().trajectories))
    columns = [packed[name][packed["assistant_mask"]].tolist() for name in ("tokens", "advantages", "weights")]
    Path(findings).write_text(json.dumps(sorted(zip(*columns, strict=True))), encoding="utf-8")


def pack_as_art(base_model: str, directory: str, findings: str) -> None:
    """For each of `CHOICES`, ART's own rows of the batch: all token ids, and advantage and weight where sampled."""
    from art.types import TrainConfig as ArtTrainConfig

    from rollbus.trainer.art_server.arts_own.packing import RollbusBackend
    from rollbus.trainer.art_server.endpoint.tokenizer import load_tokenizer
    from rollbus.trainer.backends.art_terms.groups import art_groups

    backend = RollbusBackend(directory, load_tokenizer(Path(base_model)), packing=False)  # one sequence a row
    rows_by_choice = []
    for choice in CHOICES:
        packed: Any = backend._get_packed_tensors(
            _model(base_model),
            art_groups(batch().trajectories),
            advantage_balance=choice.balance,
            scale_rewards=choice.scale_rewards,
            allow_training_without_logprobs=False,
            plot_tensors=False,
            packed_sequence_length=None,
            logprob_calculation_chunk_size=1024,
        )
        rows = []
        for row, sampled in enumerate(packed["assistant_mask"]):
            token_ids = packed["tokens"][row][packed["group_ids"][row] >= 0].tolist()
            rows.append([token_ids, *(packed[name][row][sampled].tolist() for name in ("advantages", "weights"))])
        rows_by_choice.append(sorted(rows))
    defaults = {name: getattr(ArtTrainConfig(), name) for name in ClientConfig.model_fields}
    document = {"rows": rows_by_choice, "defaults": defaults}
    Path(findings).write_text(json.dumps(document), encoding="utf-8")


def _model(base_model: str) -> Any:
    import art

    return art.TrainableModel(name="agent", run_name="agent", project="p", base_model=base_model)


def expected(aggregation: str) -> list[tuple[int, float, float]]:
    """Id, advantage and weight of every sampled token, by the records."""
    rows: list[tuple[int, float, float]] = []
    for trajectory in batch().trajectories:
        sampled = [
            (token, advantage)
            for turn in trajectory.turns
            for token, advantage in zip(
                decode_token_ids(turn.completion_token_ids), trajectory.token_advantages_of(turn), strict=True
            )
        ]
        of_group = sum(
            len(decode_token_ids(turn.completion_token_ids))
            for other in batch().trajectories
            for turn in other.turns
            if other.group_id == trajectory.group_id
        )
        weight = {"trajectory_mean": 1 / len(sampled), "prompt_mean": 1 / of_group}.get(aggregation, 1.0)
        rows += [(token, advantage, weight) for token, advantage in sampled]
    mean = sum(weight for _, _, weight in rows) / len(rows)
    return [(token, advantage, weight / mean) for token, advantage, weight in rows]
