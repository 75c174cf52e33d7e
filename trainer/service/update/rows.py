"""Take ART's packed rows apart into the independent sequences they hold.

ART packs many sequences into long rows: a position attends to earlier ones of its own group and of the groups above
it. Groups without a common ancestor never see each other, so each tree of groups is a row of its own; most hold one
sequence, need no mask, and batch with others of their length at a fraction of the cost of the packed row.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rollbus.schemas.errors import RejectedError

PADDING_GROUP = -1


@dataclass(frozen=True, slots=True)
class Tree:
    """One root segment of a packed row and all that branches off it, in packed order."""

    token_ids_T: Tensor
    positions_T: Tensor
    sampled_T: Tensor
    """True where the policy sampled the token and said how likely it was; read at the position before."""
    behaviour_T: Tensor
    advantages_T: Tensor
    weights_T: Tensor
    temperatures_T: Tensor
    """What the logits before this token are divided by."""
    groups_T: Tensor
    """Number of the segment, from 0."""
    sees_G_G: Tensor | None
    """Which segments' tokens each segment's attend to; None for one plain causal sequence."""

    def __len__(self) -> int:
        return int(self.token_ids_T.shape[0])

    def mask(self) -> Tensor | None:
        """Return which token attends to which, [T, T]; made on demand, since the masks of a step are large."""
        if self.sees_G_G is None:
            return None
        return self.sees_G_G[self.groups_T][:, self.groups_T].tril()


@dataclass(frozen=True, slots=True)
class TreeBatch:
    """Trees of similar length, padded on the right."""

    token_ids_B_T: Tensor
    positions_B_T: Tensor
    trees: tuple[Tree, ...]
    rows_N: Tensor
    """Axis N: the sampled tokens. Row, and position of the token before."""
    columns_N: Tensor
    targets_N: Tensor
    behaviour_N: Tensor
    advantages_N: Tensor
    weights_N: Tensor
    temperatures_N: Tensor
    sequence_N: Tensor
    """Counted over the whole step."""

    def mask(self) -> Tensor | None:
        """Return which token attends to which, [B, T, T]; None if every row is plain and causal."""
        if all(tree.sees_G_G is None for tree in self.trees):
            return None
        mask_B_T_T = torch.eye(self.token_ids_B_T.shape[1], dtype=torch.bool).repeat(len(self.trees), 1, 1)
        for index, tree in enumerate(self.trees):
            if (mask_T_T := tree.mask()) is not None:
                mask_B_T_T[index, : len(tree), : len(tree)] = mask_T_T
        return mask_B_T_T


def unpack(packed: Mapping[str, Tensor]) -> list[Tree]:
    """Trees of every packed row, shortest first; ties keep their order, so the step is reproducible."""
    trees = [tree for row in range(packed["tokens"].shape[0]) for tree in _row_trees(packed, row)]
    return sorted(trees, key=len)


def batches(trees: Sequence[Tree], *, padded_tokens: int) -> list[TreeBatch]:
    """Consecutive trees together as long as their padded size stays within `padded_tokens`."""
    planned: list[list[Tree]] = []
    for tree in trees:
        fits = planned and len(tree) * (len(planned[-1]) + 1) <= padded_tokens
        if fits and (planned[-1][0].sees_G_G is None) == (tree.sees_G_G is None):
            planned[-1].append(tree)
        else:
            planned.append([tree])
    built, first_sequence = [], 0
    for plan in planned:
        built.append(_batch(plan, first_sequence))
        first_sequence += sum(int(tree.groups_T.max()) + 1 for tree in plan)
    return built


def _row_trees(packed: Mapping[str, Tensor], row: int) -> list[Tree]:
    groups = packed["group_ids"][row].tolist()
    parents = packed["parent_ids"][row].tolist()
    parent_of = {group: parent for group, parent in zip(groups, parents, strict=True) if group != PADDING_GROUP}
    ancestors = {group: _ancestors(group, parent_of) for group in parent_of}
    positions_by_root: dict[int, list[int]] = {}
    for position, group in enumerate(groups):
        if group != PADDING_GROUP:
            positions_by_root.setdefault(ancestors[group][-1], []).append(position)
    return [_tree(packed, row, positions, groups, ancestors) for positions in positions_by_root.values()]


def _ancestors(group: int, parent_of: Mapping[int, int]) -> list[int]:
    """The group itself, its parent, and so on up to the root."""
    path = [group]
    while (parent := parent_of.get(path[-1], path[-1])) != path[-1] and parent != PADDING_GROUP:
        if parent in path:
            raise RejectedError(f"packed row is broken: group {group} is its own ancestor")
        path.append(parent)
    return path


def _tree(
    packed: Mapping[str, Tensor],
    row: int,
    positions: list[int],
    groups: list[int],
    ancestors: Mapping[int, list[int]],
) -> Tree:
    at = torch.tensor(positions)
    members = list(dict.fromkeys(groups[position] for position in positions))
    number = {group: index for index, group in enumerate(members)}
    groups_T = torch.tensor([number[groups[position]] for position in positions])
    behaviour_T = packed["logprobs"][row][at].clone()
    sampled_T = packed["assistant_mask"][row][at].bool() & behaviour_T.isfinite()
    first_T = torch.ones_like(sampled_T)
    first_T[1:] = groups_T[1:] != groups_T[:-1]
    if bool((sampled_T & first_T).any()):
        raise RejectedError("packed row is broken: a sampled token has no token before it in its own segment")
    temperatures = packed.get("temperatures")
    sees_G_G: Tensor | None = None
    if len(members) > 1:
        sees_G_G = torch.zeros(len(members), len(members), dtype=torch.bool)
        for group in members:
            for above in ancestors[group]:
                sees_G_G[number[group], number[above]] = True
    return Tree(
        token_ids_T=packed["tokens"][row][at].clone(),
        positions_T=packed["input_pos"][row][at].clone(),
        sampled_T=sampled_T,
        behaviour_T=behaviour_T,
        advantages_T=packed["advantages"][row][at].clone(),
        weights_T=packed["weights"][row][at].clone(),
        temperatures_T=torch.ones(len(at)) if temperatures is None else temperatures[row][at].clone(),
        groups_T=groups_T,
        sees_G_G=sees_G_G,
    )


def _batch(trees: list[Tree], first_sequence: int) -> TreeBatch:
    longest = max(len(tree) for tree in trees)
    token_ids_B_T = torch.zeros(len(trees), longest, dtype=torch.long)
    positions_B_T = torch.arange(longest).expand(len(trees), longest).clone()
    columns: dict[str, list[Tensor]] = {name: [] for name in ("row", "column", "sequence")}
    for index, tree in enumerate(trees):
        token_ids_B_T[index, : len(tree)] = tree.token_ids_T
        positions_B_T[index, : len(tree)] = tree.positions_T
        at_N = tree.sampled_T.nonzero()[:, 0]
        columns["row"].append(torch.full_like(at_N, index))
        columns["column"].append(at_N - 1)
        columns["sequence"].append(tree.groups_T[at_N] + first_sequence)
        first_sequence += int(tree.groups_T.max()) + 1

    def sampled(name: str) -> Tensor:
        return torch.cat([getattr(tree, name)[tree.sampled_T] for tree in trees])

    return TreeBatch(
        token_ids_B_T=token_ids_B_T,
        positions_B_T=positions_B_T,
        trees=tuple(trees),
        rows_N=torch.cat(columns["row"]),
        columns_N=torch.cat(columns["column"]),
        targets_N=sampled("token_ids_T"),
        behaviour_N=sampled("behaviour_T"),
        advantages_N=sampled("advantages_T"),
        weights_N=sampled("weights_T"),
        temperatures_N=sampled("temperatures_T"),
        sequence_N=torch.cat(columns["sequence"]),
    )
