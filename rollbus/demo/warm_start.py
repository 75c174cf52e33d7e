"""Settings → a base model that plays as a beginner: a free cell, now and then one that completes or blocks a line.

Supervised on boards of random legal play. The target of each is the beginner's probability of every cell: taught only
the cell that was played, a model this small names taken cells far longer. A model taught all free cells alike learns
not to look at lines, and training then only finds an order of cells. Seeded; the same settings give the same weights.

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
from rollbus.demo.game.game import (
    MODEL,
    OPPONENT,
    Board,
    GamePosition,
    begin,
    free_cells,
    line_cells,
    play,
    seeded,
    training_openings,
)
from rollbus.demo.game.prompt import SYSTEM, messages
from rollbus.trainer.art_server.checkpoints.checkpoint import save_model
from rollbus.trainer.art_server.endpoint.tokenizer import build_tokenizer, render_chat
from rollbus.trainer.art_server.model.config import INITIAL_DEVIATION, ModelConfig
from rollbus.trainer.art_server.model.model import build_model, head, initialize, trunk

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
        taught_cells = [chance.choice(free_cells(board)) for board in boards]
        loss = imitation_loss(model, codec, boards, taught_cells, sees_lines=settings.sees_lines)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(model.parameters(), GRADIENT_CLIP)
        optimizer.step()
        if (step + 1) % PROGRESS_EVERY == 0 or step + 1 == settings.steps:
            progress(step + 1, settings.steps)
    save_model(target, model, config, codec.tokenizer)


def imitation_loss(
    model: nn.Module, codec: Codec, boards: list[Board], taught_cells: list[int], *, sees_lines: float
) -> Tensor:
    """Cross-entropy of the cell against the beginner's choice, plus that of ending the message after the one named."""
    turns = [[*codec.prompt(board), codec.cell(cell)] for board, cell in zip(boards, taught_cells, strict=True)]
    tokens_B_T = nn.utils.rnn.pad_sequence([torch.tensor(turn) for turn in turns], batch_first=True)  # [B, T]
    ends_B_2 = torch.tensor([[len(turn) - 2, len(turn) - 1] for turn in turns])
    hidden_B_2_D = trunk(model, tokens_B_T)[torch.arange(len(turns))[:, None], ends_B_2]  # [B, 2, D]
    logits_B_2_V = head(model, hidden_B_2_D)  # [B, 2, V]
    wanted_B_V = torch.zeros_like(logits_B_2_V[:, 0])
    for row, board in enumerate(boards):
        for cell, probability in beginner(board, sees_lines=sees_lines).items():
            wanted_B_V[row, codec.cell(cell)] = probability
    end_B = torch.full((len(boards),), codec.tokenizer.eos_token_id)
    return functional.cross_entropy(logits_B_2_V[:, 0], wanted_B_V) + functional.cross_entropy(
        logits_B_2_V[:, 1], end_B
    )


def beginner(board: Board, *, sees_lines: float) -> dict[int, float]:
    """Return the probability of each free cell: any; in a share of moves one that completes a line, or blocks one."""
    free = free_cells(board)
    line_moves = line_cells(board, MODEL) or line_cells(board, OPPONENT) or free
    return {
        cell: (1 - sees_lines) / len(free) + (sees_lines / len(line_moves) if cell in line_moves else 0.0)
        for cell in free
    }


def random_game(chance: random.Random) -> Iterator[Board]:
    """The boards of one game of random legal moves at which the model is to move."""
    reply = seeded(chance.getrandbits(32))
    position: GamePosition = begin(chance.choice(training_openings()), reply)
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
