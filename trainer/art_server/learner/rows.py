"""Take ART's packed rows apart into sequences, and lay those with a common beginning into one row, for one computation.

ART packs sequences as trees of segments: a position attends to earlier ones of its own segment and of those above. It
shares only long beginnings among them. Here every segment with sampled tokens, after all that is above it, is a
sequence up to the last token that a log-prob is read at. Sorted, sequences lie beside those that they share most with.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rollbus.schemas.errors import RejectedError

PADDING_GROUP = -1
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


def unpack(packed: Mapping[str, Tensor]) -> list[Tree]:
    """Trees of all sequences, shortest first; ties keep their order, so the step is reproducible."""
    paths = [path for row in range(packed["tokens"].shape[0]) for path in _read_sequences(packed, row)]
    order = sorted(range(len(paths)), key=lambda index: paths[index].token_ids.astype(">u4").tobytes())
    return sorted(_build_trees([_numbered(paths[index], index) for index in order]), key=len)


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


def _numbered(path: _Path, number: int) -> _Path:
    return _Path(path.token_ids, path.columns, {**path.samples, "sequence": torch.full((len(path.columns),), number)})


def _read_sequences(packed: Mapping[str, Tensor], row: int) -> Iterator[_Path]:
    """Yield each segment that has sampled tokens, after all that is above it."""
    groups, parents = packed["group_ids"][row].numpy(), packed["parent_ids"][row].numpy()
    tokens = packed["tokens"][row].numpy()
    sampled = (packed["assistant_mask"][row].bool() & packed["logprobs"][row].isfinite()).numpy()
    numbers, counts = np.unique(groups, return_counts=True)
    places = dict(zip(numbers.tolist(), np.split(np.argsort(groups, kind="stable"), counts.cumsum()[:-1]), strict=True))
    places.pop(PADDING_GROUP, None)
    parent_of = {group: int(parents[at[0]]) for group, at in places.items()}
    for group, at in places.items():
        sampled_places = at[sampled[at]]
        if len(sampled_places):
            above = [places[ancestor] for ancestor in _ancestors(group, parent_of)[::-1]]
            path = np.concatenate(above)
            columns = np.flatnonzero(sampled[at]) + len(path) - len(at) - 1
            if columns[0] < 0:
                raise RejectedError("packed row is broken: a sampled token has no token before it")
            yield _Path(
                tokens[path[: columns[-1] + 1]], columns, _read_samples(packed, row, torch.from_numpy(sampled_places))
            )


def _read_samples(packed: Mapping[str, Tensor], row: int, at: Tensor) -> Samples:
    temperatures = packed.get("temperatures")
    names = {"target": "tokens", "behaviour": "logprobs", "advantage": "advantages", "weight": "weights"}
    return {
        **{name: packed[column][row][at] for name, column in names.items()},
        "temperature": torch.ones(len(at)) if temperatures is None else temperatures[row][at],
    }


def _ancestors(group: int, parent_of: Mapping[int, int]) -> list[int]:
    """The group itself, its parent, and so on up to the root."""
    path = [group]
    while (parent := parent_of.get(path[-1], path[-1])) != path[-1] and parent != PADDING_GROUP:
        if parent in path:
            raise RejectedError(f"packed row is broken: group {group} is its own ancestor")
        path.append(parent)
    return path


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
