"""Sequences → rows in which those with a common beginning share it, for one computation.

Every sequence goes up to the last token that a log-prob is read at. Sorted, sequences lie next to those that they share
most with.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rollbus.schemas.errors import RejectedError
from rollbus.trainer.backends.sequences import TokenSequence

SHARED_TOKENS = 16
"""Shorter beginnings are not worth the mask that sharing needs."""
TREE_TOKENS = 1024
"""A tree holds so many tokens, or twice its longest sequence: its mask has an entry for every pair of them."""
PAIRS_PER_TOKEN = 4000
"""Attention takes every pair of a tree's tokens; about so many cost as much as all else that is done with one token. By
the count of products it is 3,000 at a width of 576, and a tree that stays apart is padded. A wider network has more."""

Numbers = NDArray[np.int64]
Samples = dict[str, Tensor]
"""Sampled tokens [N] and what is known of each: target, behaviour, advantage, weight, temperature, sequence."""


@dataclass(frozen=True, slots=True)
class Tree:
    """Sequences of which each token that they share stands once, in the order of a walk from the root."""

    token_ids_T: Tensor
    positions_T: Tensor
    """Depth of each token, from 0."""
    ends_T: Tensor
    """The first place after all that follows from this token."""
    columns_N: Tensor
    """Axis N: the sampled tokens. Place of the token before, where the log-prob is read."""
    samples: Samples

    def __len__(self) -> int:
        return int(self.token_ids_T.shape[0])

    @property
    def branches(self) -> bool:
        """Whether some token does not follow from all before it."""
        return bool((self.ends_T < len(self)).any())


@dataclass(frozen=True, slots=True)
class TreeBatch:
    """Trees of similar length, padded on the right."""

    token_ids_B_T: Tensor
    positions_B_T: Tensor
    ends_B_T: Tensor | None
    """None if every row is plain and causal."""
    rows_N: Tensor
    """Axis N: the sampled tokens. Row, and position of the token before."""
    columns_N: Tensor
    targets_N: Tensor
    behaviour_N: Tensor
    """Log-prob when it was sampled."""
    advantages_N: Tensor
    weights_N: Tensor
    temperatures_N: Tensor
    """What the logits before this token are divided by."""
    sequence_N: Tensor
    """Counted over the whole step."""

    def mask(self) -> Tensor | None:
        """Return which token attends to which, [B, T, T]; made on demand, since the masks of a step are large."""
        if self.ends_B_T is None:
            return None
        places_T = torch.arange(self.ends_B_T.shape[1])
        follows_B_T_T = places_T[:, None] < self.ends_B_T[:, None, :]
        return follows_B_T_T.tril_() | torch.eye(len(places_T), dtype=torch.bool)  # padding attends to itself


def grow_trees(sequences: Sequence[TokenSequence]) -> list[Tree]:
    """Trees of all sequences, shortest first; ties keep their order, so the step is reproducible."""
    paths = [_read_path(sequence, number) for number, sequence in enumerate(sequences)]
    paths.sort(key=lambda path: path.token_ids.astype(">u4").tobytes())
    return sorted(_build_trees(paths), key=len)


def batches(trees: Sequence[Tree], *, padded_tokens: int) -> list[TreeBatch]:
    """Consecutive trees together as long as their padded size stays within `padded_tokens`."""
    planned: list[list[Tree]] = []
    for tree in trees:
        fits = planned and len(tree) * (len(planned[-1]) + 1) <= padded_tokens
        if fits and planned[-1][0].branches == tree.branches:
            planned[-1].append(tree)
        else:
            planned.append([tree])
    return [_pad(plan) for plan in planned]


@dataclass(frozen=True, slots=True)
class _Path:
    """A sequence up to the last token that is read."""

    token_ids: Numbers
    columns: Numbers
    samples: Samples


def _read_path(sequence: TokenSequence, number: int) -> _Path:
    """Return a sequence as numbers. RejectedError if the first token of all was sampled: nothing predicts it."""
    spans = sequence.spans
    if spans[0].start == 0:
        raise RejectedError(f"trajectory {sequence.trajectory.trajectory_id} has a turn with no token before its first")
    token_ids = np.frombuffer(sequence.token_ids, "<i4").astype(np.int64)
    places = np.concatenate([np.arange(span.start, span.end) for span in spans])
    behaviour = np.frombuffer(b"".join(span.turn.logprobs for span in spans), "<f4").astype(np.float32)
    temperatures = [torch.full((span.end - span.start,), span.turn.temperature) for span in spans]
    samples = {
        "target": torch.from_numpy(token_ids[places]),
        "behaviour": torch.from_numpy(behaviour),
        "advantage": torch.tensor(list(sequence.advantages), dtype=torch.float32),
        "weight": torch.full((len(places),), sequence.weight),
        "temperature": torch.cat(temperatures),
        "sequence": torch.full((len(places),), number),
    }
    return _Path(token_ids[: places[-1]], places - 1, samples)


def _build_trees(paths: Sequence[_Path]) -> Iterator[Tree]:
    """Yield trees of sorted sequences; each joins the one before it if that saves time and the tree has room."""
    grown: list[_Path] = []
    shared: list[int] = []
    tokens = longest = 0
    for path in paths:
        length = len(path.token_ids)
        common = _count_common(grown[-1].token_ids, path.token_ids) if grown else 0
        room = max(TREE_TOKENS, 2 * max(longest, length))
        joined = tokens + length - common
        further_pairs = joined**2 - tokens**2 - length**2
        pays = common >= SHARED_TOKENS and common * PAIRS_PER_TOKEN >= further_pairs
        if grown and (joined > room or not pays):
            yield _grow(grown, shared)
            grown, shared, tokens, longest, common = [], [], 0, 0, 0
        grown.append(path)
        shared.append(common)
        tokens, longest = tokens + length - common, max(longest, length)
    if grown:
        yield _grow(grown, shared)


def _grow(paths: Sequence[_Path], shared: Sequence[int]) -> Tree:
    """Lay the sequences one after the other, each without what it shares with the one before it."""
    size = sum(len(path.token_ids) - common for path, common in zip(paths, shared, strict=True))
    ends = np.full(size, size)
    walk: Numbers = np.zeros(0, dtype=np.int64)  # the places of the newest sequence's tokens
    columns = []
    at = 0
    for path, common in zip(paths, shared, strict=True):
        ends[walk[common:]] = at
        added = len(path.token_ids) - common
        walk = np.concatenate([walk[:common], np.arange(at, at + added)])
        columns.append(walk[path.columns])
        at += added
    pieces = [(path.token_ids[common:], common) for path, common in zip(paths, shared, strict=True)]
    return Tree(
        token_ids_T=torch.from_numpy(np.concatenate([tokens for tokens, _ in pieces])),
        positions_T=torch.from_numpy(np.concatenate([np.arange(len(tokens)) + first for tokens, first in pieces])),
        ends_T=torch.from_numpy(ends),
        columns_N=torch.from_numpy(np.concatenate(columns)),
        samples={name: torch.cat([path.samples[name] for path in paths]) for name in paths[0].samples},
    )


def _count_common(row: Numbers, other: Numbers) -> int:
    length = min(len(row), len(other))
    different = np.flatnonzero(row[:length] != other[:length])
    return int(different[0]) if len(different) else length


def _pad(trees: list[Tree]) -> TreeBatch:
    longest = max(len(tree) for tree in trees)
    token_ids_B_T = torch.zeros(len(trees), longest, dtype=torch.long)
    positions_B_T = torch.zeros(len(trees), longest, dtype=torch.long)  # of padding: any that the model has
    ends_B_T = torch.zeros(len(trees), longest, dtype=torch.long)
    for index, tree in enumerate(trees):
        token_ids_B_T[index, : len(tree)] = tree.token_ids_T
        positions_B_T[index, : len(tree)] = tree.positions_T
        ends_B_T[index, : len(tree)] = tree.ends_T

    def sampled(name: str) -> Tensor:
        return torch.cat([tree.samples[name] for tree in trees])

    return TreeBatch(
        token_ids_B_T=token_ids_B_T,
        positions_B_T=positions_B_T,
        ends_B_T=ends_B_T if any(tree.branches for tree in trees) else None,
        rows_N=torch.cat([torch.full_like(tree.columns_N, index) for index, tree in enumerate(trees)]),
        columns_N=torch.cat([tree.columns_N for tree in trees]),
        targets_N=sampled("target"),
        behaviour_N=sampled("behaviour"),
        advantages_N=sampled("advantage"),
        weights_N=sampled("weight"),
        temperatures_N=sampled("temperature"),
        sequence_N=sampled("sequence"),
    )
