"""Names with dots and numbers → nested values: `llm.input_messages.0.message.role` is a field of the first message."""

from collections.abc import Mapping
from typing import Any

MAX_PLACE = 100_000
"""Of an element in a list; a greater number is a name."""


def nest(flat: Mapping[str, Any]) -> Any:
    """Return the nested form of fields whose names are paths; a path of numbers makes a list, in their order."""
    tree: dict[str, Any] = {}
    for name, value in flat.items():
        *path, last = name.split(".")
        node = tree
        for step in path:
            below = node.setdefault(step, {})
            if not isinstance(below, dict):
                below = node[step] = {"": below}
            node = below
        if isinstance(fields := node.get(last), dict):
            fields[""] = value
        else:
            node[last] = value
    return _as_lists(tree)


def _as_lists(tree: Any) -> Any:
    if not isinstance(tree, dict):
        return tree
    fields = {name: _as_lists(value) for name, value in tree.items()}
    if fields and all(name.isdecimal() and int(name) < MAX_PLACE for name in fields):
        return [fields[name] for name in sorted(fields, key=int)]
    return fields
