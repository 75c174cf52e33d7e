"""Which episodes belong to which root, and what of a root's rewards reaches them.

A root and its sub-agents' episodes share a partition of `episode-events`, and no later one: trajectories lie by what
they are compared with. So the rule is applied here, and later stages see ordinary rewards.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from rollbus.schemas.records.config import PassDown
from rollbus.schemas.records.trajectories import Reward


@dataclass(slots=True)
class Families:
    """An index: the sub-agents' episodes of each root."""

    children_by_root: dict[str, set[str]] = field(default_factory=dict)
    root_by_child: dict[str, str] = field(default_factory=dict)

    def add_child(self, child: str, root: str) -> None:
        """Note an episode's root; of two that were named the lesser stays, whichever came first."""
        root_by_child = self.root_by_child.get(child)
        if root_by_child is not None and root_by_child <= root:
            return
        self.remove_child(child)
        self.root_by_child[child] = root
        self.children_by_root.setdefault(root, set()).add(child)

    def remove_child(self, child: str) -> None:
        """Forget an episode, if it is known."""
        root = self.root_by_child.pop(child, None)
        if root is None:
            return
        children = self.children_by_root[root]
        children.discard(child)
        if not children:
            del self.children_by_root[root]

    def children_of(self, root: str) -> Sequence[str]:
        """Return a root's known episodes, in order of their ids."""
        return sorted(self.children_by_root.get(root, ()))


def pass_rewards_down(
    rules: Mapping[str, PassDown],
    own_rewards: Iterable[Reward],
    of_root: Iterable[Reward],
    *,
    agent: str,
    children: int,
) -> tuple[Reward, ...]:
    """Return what a sub-agent's episode gets of its root's rewards; each keeps the id and source of the root's report.

    Reports on the root's turns stay with the root: they say something of its turns only.
    """
    own_names = {reward.name for reward in own_rewards}
    passed_rewards = []
    for reward in of_root:
        name, rule = _find_rule(rules, reward.name, agent)
        if reward.turn_event_id is not None or rule == "none" or name in own_names:
            continue
        value = reward.value / children if rule == "split" else reward.value
        passed_rewards.append(replace(reward, name=name, value=value))
    return tuple(passed_rewards)


def _find_rule(rules: Mapping[str, PassDown], report: str, agent: str) -> tuple[str, PassDown]:
    """Return the name under which a root's report reaches an agent's episodes, and by which rule."""
    names = [name for name, rule in rules.items() if rule == "by_name" and report.startswith(f"{name}.")]
    if names:
        name = next((name for name in names if report == f"{name}.{agent}"), "")
        return name, "by_name" if name else "none"
    rule = rules.get(report, rules.get("*", "none"))
    return report, "none" if rule == "by_name" else rule
