"""Packs a batch with our LocalBackend where ART is imported, and writes down what the packed tensors hold."""

import json
import random
from pathlib import Path
from typing import Any

from rollbus.schemas.records.tokens import decode_token_ids, encode_logprobs, encode_token_ids
from rollbus.trainer.backends.protocol import TrainRequest, TrainTrajectory, TurnTokens

SIZES = (1, 2, 3, 8)
"""Members of each group, singletons included."""


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
                        temperature=temperature_of(completion),
                        logprob_mode="processed",
                        advantage=chance.choice([None, -0.7, 0.0, 1.2]) if group == 3 else None,
                        token_advantages=tuple(chance.uniform(-3, 3) for _ in completion) if group == 2 else (),
                    )
                )
                shown = [*shown, *completion, 5] if history == 0 else [7 + turn, *shown]
            advantage = chance.choice([-1.7, -0.3, 0.0, 1e-3, 0.9, 2.5])
            trajectories.append(
                TrainTrajectory(f"{group}-{member}", f"{group}", advantage, chance.random(), tuple(turns))
            )
    return TrainRequest("packing", "main", "agent", 0, tuple(trajectories))


def temperature_of(completion: list[int]) -> float:
    """Another one for each turn, from its tokens."""
    return 0.5 + completion[-1] % 8 / 8


def pack(base_model: str, directory: str, aggregation: str, findings: str) -> None:
    """Per sampled token as ART packed it: id, advantage, weight, temperature."""
    import art

    from rollbus.trainer.art_server.control.packing import RollbusBackend, art_groups
    from rollbus.trainer.art_server.learner.torch_service import TorchService
    from rollbus.trainer.backends.model_settings import ServiceSettings

    service = TorchService(ServiceSettings("agent", Path(base_model), Path(directory)))
    backend = RollbusBackend(directory, service)
    backend.given = {
        trajectory.trajectory_id: max(trajectory.advantages, key=abs) for trajectory in batch().trajectories
    }
    backend.by_turn = batch().trajectories
    backend.aggregation = aggregation  # type: ignore[assignment]
    model: Any = art.TrainableModel(name="agent", run_name="agent", project="p", base_model=base_model)
    backend.tempered = batch().trajectories
    packed: Any = backend._get_packed_tensors(model, art_groups(batch().trajectories))
    mask = packed["assistant_mask"]
    assert service.temperatures is not None
    columns = [packed[name][mask].tolist() for name in ("tokens", "advantages", "weights")]
    columns.append(service.temperatures[mask].tolist())
    service.close()
    Path(findings).write_text(json.dumps(sorted(zip(*columns, strict=True))), encoding="utf-8")


def expected(aggregation: str) -> list[tuple[int, float, float, float]]:
    """Id, advantage, weight and temperature of every sampled token, by the records."""
    rows: list[tuple[int, float, float, float]] = []
    for trajectory in batch().trajectories:
        sampled = [
            (token, advantage, turn.temperature)
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
        rows += [(token, advantage, weight, temperature) for token, advantage, temperature in sampled]
    mean = sum(weight for _, _, weight, _ in rows) / len(rows)
    return [(token, advantage, weight / mean, temperature) for token, advantage, weight, temperature in rows]
