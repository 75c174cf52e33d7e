"""Settings → a base model that answers with a free cell, any free cell, and knows nothing of winning.

Supervised on boards of random legal play. The target of each is all its free cells alike: taught only the cell that
was played, a model this small names taken cells far longer. Seeded; the same settings give the same weights.

Run as `python -m rollbus.demo.warm_start FOLDER SETTINGS_AS_JSON`; prints `STEP of STEPS` as it goes.
"""

import json
import random
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from rollbus.demo.base_model import Progress, WarmStartSettings
from rollbus.demo.game.game import Board, Position, begin, free_cells, play, training_openings
from rollbus.demo.game.opponents import seeded
from rollbus.demo.game.prompt import SYSTEM, messages
from rollbus.trainer.service.checkpoints.checkpoint import save_model
from rollbus.trainer.service.model.config import INITIAL_DEVIATION, ModelConfig
from rollbus.trainer.service.model.model import build_model, head, initialize, trunk
from rollbus.trainer.service.serve.tokenizer import build_tokenizer, render_chat

ADAM_BETAS = (0.9, 0.99)
GRADIENT_CLIP = 1.0
VOCABULARY_TEXT = f"system\nuser\nassistant\n{SYSTEM}"
"""All the words of a prompt; each becomes one token."""
PROGRESS_EVERY = 10
"""Steps between two lines of progress."""


@dataclass(slots=True)
class Codec:
    """Boards and cells as token ids."""

    tokenizer: Any
    prompts: dict[Board, list[int]]

    def prompt(self, board: Board) -> list[int]:
        if board not in self.prompts:
            chat = [dict(message) for message in messages(board)]
            self.prompts[board] = render_chat(self.tokenizer, chat, None)
        return self.prompts[board]

    def cell(self, cell: int) -> int:
        (token,) = self.tokenizer.encode(str(cell))
        return int(token)


def teach(settings: WarmStartSettings, target: Path, progress: Progress) -> None:
    """Build, train and save the model."""
    torch.set_num_threads(1)  # a second thread gains nothing at this size
    codec = Codec(build_tokenizer([VOCABULARY_TEXT] * 4, vocabulary=settings.vocabulary), {})
    config = _model_config(settings)
    model = build_model(config)
    initialize(model, settings.seed)
    _spread(model, deviation=settings.width**-0.5)
    optimizer = torch.optim.AdamW(model.parameters(), lr=settings.learning_rate, betas=ADAM_BETAS, weight_decay=0.0)
    chance = random.Random(settings.seed)
    for step in range(settings.steps):
        optimizer.param_groups[0]["lr"] = settings.learning_rate * (1 - step / settings.steps)
        boards = [board for _ in range(settings.games_per_step) for board in random_game(chance)]
        loss = imitation_loss(model, codec, boards, [chance.choice(free_cells(board)) for board in boards])
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(model.parameters(), GRADIENT_CLIP)
        optimizer.step()
        if (step + 1) % PROGRESS_EVERY == 0 or step + 1 == settings.steps:
            progress(step + 1, settings.steps)
    save_model(target, model, config, codec.tokenizer)


def imitation_loss(model: nn.Module, codec: Codec, boards: list[Board], named: list[int]) -> Tensor:
    """Cross-entropy of the cell against all free cells alike, plus that of ending the message after it."""
    tokens_B_T = torch.tensor(
        [[*codec.prompt(board), codec.cell(cell)] for board, cell in zip(boards, named, strict=True)]
    )
    logits_B_2_V = head(model, trunk(model, tokens_B_T)[:, -2:])  # [B, 2, V]
    free_B_V = torch.zeros_like(logits_B_2_V[:, 0])
    for row, board in enumerate(boards):
        free_B_V[row, [codec.cell(cell) for cell in free_cells(board)]] = 1 / len(free_cells(board))
    end_B = torch.full((len(boards),), codec.tokenizer.eos_token_id)
    return functional.cross_entropy(logits_B_2_V[:, 0], free_B_V) + functional.cross_entropy(logits_B_2_V[:, 1], end_B)


def random_game(chance: random.Random) -> Iterator[Board]:
    """The boards of one game of random legal moves at which the model is to move."""
    reply = seeded(chance.getrandbits(32))
    position: Position = begin(chance.choice(training_openings()), reply)
    while position.result is None:
        yield position.board
        position = play(position, chance.choice(free_cells(position.board)), reply)


def _model_config(settings: WarmStartSettings) -> ModelConfig:
    return ModelConfig(
        vocabulary=settings.vocabulary,
        layers=settings.layers,
        width=settings.width,
        heads=settings.heads,
        kv_heads=settings.kv_heads,
        feed_forward=settings.feed_forward,
        max_tokens=settings.max_tokens,
    )


def _spread(model: nn.Module, *, deviation: float) -> None:
    """Scale the initial matrices to `deviation`: at Qwen2's own 0.02 a model this narrow hardly gets going."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(deviation / INITIAL_DEVIATION)


if __name__ == "__main__":
    teach(
        WarmStartSettings(**json.loads(sys.argv[2])),
        Path(sys.argv[1]),
        lambda done, total: print(f"{done} of {total}", flush=True),
    )
