"""Public names of a package that are imported at their first use, so that importing the package costs nothing.

__getattr__ = lazy_names(__name__, {"Sink": "sink"})
"""

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazy_names(package: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """Return the package's `__getattr__`; `homes` maps each name to its module.

    Raises ValueError for a name that is also a module's or folder's: importing that would hide the name.
    """
    if hidden := sorted(set(homes) & {home.partition(".")[0] for home in homes.values()}):
        raise ValueError(f"{package}: {', '.join(hidden)} is the name of a module, too")

    def get(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(f"{package}.{homes[name]}"), name)

    return get
