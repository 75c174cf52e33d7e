"""Write train.jsonl (the openings of training) and validation.jsonl (the held-out ones, against 28 opponents each)."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rollbus.demo.game.game import Opening, held_out_openings, training_openings

HERE = Path(__file__).parent
OPPONENTS = 28


def example(opening: Opening, opponent: str) -> dict[str, Any]:
    return {"id": f"{opening.id}-{opponent}", "first": opening.first, "moves": opening.moves, "opponent": opponent}


def write(name: str, examples: Iterable[dict[str, Any]]) -> None:
    (HERE / name).write_text("".join(json.dumps(example) + "\n" for example in examples), encoding="utf-8")


if __name__ == "__main__":
    write("train.jsonl", (example(opening, "train") for opening in training_openings()))
    write(
        "validation.jsonl",
        (example(opening, f"validation-{n}") for n in range(OPPONENTS) for opening in held_out_openings()),
    )
