"""Trains with retention, and on tokens of another temperature, where ART is imported; writes down what is left."""

import asyncio
import json
import random
from pathlib import Path
from typing import Any

from rollbus.schemas.errors import RejectedError
from rollbus.schemas.records.tokens import encode_logprobs, encode_token_ids
from rollbus.trainer.backends.protocol import TrainConfig, TrainRequest, TrainTrajectory, TurnTokens

STEPS = 5
CONFIG = TrainConfig(learning_rate=1e-3)


def request(number: int) -> TrainRequest:
    """A group of two answers, one of them sampled at temperature 0.7; both by the base model."""
    chance = random.Random(number)
    trajectories = []
    for member in range(2):
        completion = [chance.randrange(3, 384) for _ in range(4)]
        turn = TurnTokens(
            encode_token_ids([5, 6, 7]),
            encode_token_ids(completion),
            encode_logprobs([-5.0] * 4),
            0,
            temperature=0.7 if member else 1.0,
            logprob_mode="processed",
        )
        trajectories.append(TrainTrajectory(f"{number}-{member}", f"{number}", member - 0.5, float(member), (turn,)))
    return TrainRequest(f"hash-{number}", "main", "agent", number, tuple(trajectories), CONFIG)


def train(base_model: str, directory: str, findings: str) -> None:
    found = asyncio.run(_train(Path(base_model), Path(directory)))
    Path(findings).write_text(json.dumps(found), encoding="utf-8")


async def _train(base_model: Path, directory: Path) -> dict[str, Any]:
    from rollbus.trainer.backends.art.local import ArtLocal
    from rollbus.trainer.backends.model_settings import Retention, ServiceSettings

    settings = ServiceSettings("agent", base_model, directory, retention=Retention(keep_newest=1, keep_every=2))
    backend = ArtLocal(settings)
    await backend.start()
    for number in range(STEPS):
        await backend.submit(request(number))
        result = await backend.wait(f"hash-{number}")
    try:
        await backend.promote(1)
        refusal = ""
    except RejectedError as error:
        refusal = str(error)
    await backend.close()
    again = ArtLocal(settings)
    await again.start()
    known = await again.versions()
    first = await again.journal("hash-0")
    found = {
        "kept": [each.version for each in known.known],
        "head": known.head,
        "lineage": again.service.store.lineage(known.head),
        "trained": list(result.trained_ids),
        "first": None if first is None else first.version,
        "refusal": refusal,
    }
    await again.close()
    return found
