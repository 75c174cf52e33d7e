"""Worlds of a real model, whose answer is known: the demo's game. `coverage` holds estimates to them.

Both versions are networks in this process. Every reply of the record is drawn from the probabilities that its version
gives it, and the other version's log-probs are its own. So what it truly earns is a sum and not a sample: over the tree
of the game, against an opponent that takes any free cell alike. Later versions are trained on the moves of won games.
"""

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import batched
from math import log
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn import functional

from benchmarks.delivery.worlds import KnownWorld
from rollbus.demo.base_model import WarmStartSettings, ensure
from rollbus.demo.game import game, prompt
from rollbus.demo.game.game import MODEL, OPPONENT, Board, Opening, Result
from rollbus.estimates.episode import Logged, Step
from rollbus.trainer.art_server.checkpoints.loading import ModelLoader
from rollbus.trainer.art_server.endpoint.tokenizer import load_tokenizer, render_chat
from rollbus.trainer.art_server.model.config import read_config
from rollbus.trainer.art_server.model.model import head, trunk

SMALL = WarmStartSettings(steps=150, games_per_step=8, layers=1, width=64, feed_forward=128, vocabulary=320)
AT_ONCE = 32
LEARNING_RATE = 1e-3
Ids = tuple[int, ...]


@dataclass(slots=True)
class Version:
    """A network, and the probabilities that it gives to the next token; each is computed once."""

    network: nn.Module
    tokenizer: Any
    rows: dict[Ids, NDArray[np.float64]] = field(default_factory=dict)
    sums: dict[Ids, NDArray[np.float64]] = field(default_factory=dict)
    """Of the rows, up to each token."""

    def next_token(self, ids: Ids) -> NDArray[np.float64]:
        """Return the probabilities of what follows these tokens."""
        if ids not in self.rows:
            self.compute([ids])
        return self.rows[ids]

    def compute(self, prompts: Sequence[Ids]) -> None:
        """Compute many at once: those of one length together."""
        by_length: dict[int, list[Ids]] = {}
        for ids in prompts:
            by_length.setdefault(len(ids), []).append(ids)
        for same in by_length.values():
            for some in batched(same, AT_ONCE):
                with torch.no_grad():
                    logits_B_V = head(self.network, trunk(self.network, torch.tensor(some))[:, -1])
                for ids, row in zip(some, torch.softmax(logits_B_V.double(), dim=-1).numpy(), strict=True):
                    self.rows[ids] = row

    def draw(self, ids: Ids, chance: Random) -> int:
        """Sample a token."""
        if ids not in self.sums:
            self.sums[ids] = np.cumsum(self.next_token(ids))
        return min(int(np.searchsorted(self.sums[ids], chance.random())), len(self.sums[ids]) - 1)

    def learned(self, examples: Sequence[Ids], *, steps: int, chance: Random) -> "Version":
        """Return a copy that was trained to say the last token of these, so many steps of 32 of them."""
        network = copy.deepcopy(self.network)
        optimizer = torch.optim.AdamW(
            [parameter for parameter in network.parameters() if parameter.requires_grad], LEARNING_RATE
        )
        for _ in range(steps):
            by_length: dict[int, list[Ids]] = {}
            for ids in chance.choices(examples, k=32):
                by_length.setdefault(len(ids), []).append(ids)
            optimizer.zero_grad()
            for same in by_length.values():
                tokens_B_T = torch.tensor(same)
                logits_B_V = head(network, trunk(network, tokens_B_T[:, :-1])[:, -1])
                loss = functional.cross_entropy(logits_B_V, tokens_B_T[:, -1]) * len(same) / 32
                loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        return Version(network, self.tokenizer)


def load_version(folder: Path) -> Version:
    """Load a base model."""
    return Version(ModelLoader(read_config(folder)).load(folder).eval(), load_tokenizer(folder))


# The game


class Boards:
    """What a version plays: replies of two tokens, of which the second must end the message."""

    def __init__(self, tokenizer: Any) -> None:
        self.end = int(tokenizer.eos_token_id)
        self.digits = {cell: int(tokenizer.encode(str(cell))[0]) for cell in range(1, 10)}
        self.cells = {token: cell for cell, token in self.digits.items()}
        self._tokenizer = tokenizer
        self.prompt = cache(self._prompt)

    def _prompt(self, board: Board) -> Ids:
        return tuple(render_chat(self._tokenizer, [dict(message) for message in prompt.messages(board)], None))

    def replies(self, board: Board) -> Iterator[Ids]:
        """Yield the prompts whose next token decides the turn: after the board, and after each free cell's digit."""
        prompt_ids = self.prompt(board)
        yield prompt_ids
        for cell in game.free_cells(board):
            yield (*prompt_ids, self.digits[cell])


def reachable_boards() -> list[Board]:
    """Return every board at which the model may be to move."""
    boards, left = set[Board](), [board for opening in game.training_openings() for board in _first_boards(opening)]
    while left:
        board = left.pop()
        if board not in boards:
            boards.add(board)
            left += [then for cell in game.free_cells(board) for then in _boards_after(board, cell)]
    return sorted(boards)


def _first_boards(opening: Opening) -> list[Board]:
    if opening.to_move == MODEL:
        return [opening.board]
    return [game.place(opening.board, cell, OPPONENT) for cell in game.free_cells(opening.board)]


def _boards_after(board: Board, cell: int) -> list[Board]:
    taken = game.place(board, cell, MODEL)
    if game.result_of(taken):
        return []
    then = [game.place(taken, reply, OPPONENT) for reply in game.free_cells(taken)]
    return [next_board for next_board in then if not game.result_of(next_board)]


def true_reward_of_game(version: Version, boards: Boards) -> float:
    """Return what a version earns on average, summed over the tree."""

    @cache
    def from_board(board: Board) -> float:
        if result := game.result_of(board):
            return prompt.reward(result)
        prompt_ids, legal, value = boards.prompt(board), 0.0, 0.0
        for cell in game.free_cells(board):
            token = boards.digits[cell]
            chance = version.next_token(prompt_ids)[token] * version.next_token((*prompt_ids, token))[boards.end]
            legal, value = legal + chance, value + chance * after(board, cell)
        return value + (1 - legal) * prompt.reward(Result.ILLEGAL)

    def after(board: Board, cell: int) -> float:
        taken = game.place(board, cell, MODEL)
        if result := game.result_of(taken):
            return prompt.reward(result)
        replies = game.free_cells(taken)
        return sum(from_board(game.place(taken, reply, OPPONENT)) for reply in replies) / len(replies)

    openings = game.training_openings()
    firsts = [_first_boards(opening) for opening in openings]
    return sum(sum(map(from_board, boards_of)) / len(boards_of) for boards_of in firsts) / len(openings)


def play_once(
    version: Version, boards: Boards, chance: Random, other: Version | None = None
) -> tuple[Board, list[tuple[Ids, float]], float]:
    """Play a game; return its first board, each reply with its log ratio, and the reward."""
    board = first = chance.choice(_first_boards(chance.choice(game.training_openings())))
    replies: list[tuple[Ids, float]] = []
    while (result := game.result_of(board)) is None:
        ids, ratio = boards.prompt(board), 0.0
        for _ in range(prompt.MAX_REPLY_TOKENS):
            token = version.draw(ids, chance)
            if other is not None:
                ratio += log(other.next_token(ids)[token] / version.next_token(ids)[token])
            ids = (*ids, token)
            if token == boards.end:
                break
        replies.append((ids, ratio))
        cell = boards.cells.get(ids[-2]) if ids[-1] == boards.end else None
        if cell not in game.free_cells(board):
            return first, replies, prompt.reward(Result.ILLEGAL)
        board = game.place(board, cell, MODEL)
        if game.result_of(board) is None:
            board = game.place(board, chance.choice(game.free_cells(board)), OPPONENT)
    return first, replies, prompt.reward(result)


def game_world(version: Version, other: Version, boards: Boards) -> KnownWorld:
    """Return recorded games of one version, and what both truly earn."""

    def draw(chance: Random, episodes: int) -> list[Logged]:
        drawn = []
        for number in range(episodes):
            first, replies, earned = play_once(version, boards, chance, other)
            steps = [Step(ratio) for _, ratio in replies]
            steps[-1] = Step(steps[-1].log_ratio, earned)
            drawn.append(Logged(f"e{number}", prompt.TASK, first, tuple(steps)))
        return drawn

    truth, earned = (true_reward_of_game(policy, boards) for policy in (other, version))
    return KnownWorld(draw, truth, earned, low=prompt.reward(Result.ILLEGAL))


def won_moves(version: Version, boards: Boards, chance: Random, games: int) -> list[Ids]:
    """Return the digits with which games were won, each after its board."""
    played = [play_once(version, boards, chance) for _ in range(games)]
    return [ids[:-1] for _, replies, earned in played if earned == 1.0 for ids, _ in replies]


# What is measured


def game_worlds(cache_dir: Path, steps: Sequence[int]) -> dict[str, KnownWorld]:
    """Return the game's base model beside versions that were trained so many steps on its won games."""
    torch.set_num_threads(1)
    base = load_version(ensure(SMALL, cache_dir))
    boards, chance = Boards(base.tokenizer), Random(1)
    prompts = [ids for board in reachable_boards() for ids in boards.replies(board)]
    base.compute(prompts)
    moves, worlds = won_moves(base, boards, chance, 1_000), {}
    for count in steps:
        version = base.learned(moves, steps=count, chance=Random(2))
        version.compute(prompts)
        worlds[f"the game, {count} steps later"] = game_world(base, version, boards)
    return worlds
