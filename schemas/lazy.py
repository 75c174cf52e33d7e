"""Public names of a package that are imported when they are first used, so that importing the package costs nothing.

__getattr__ = lazy_names(__name__, {"Sink": "sink"})
"""

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazy_names(package: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """Return the package's `__getattr__`; `homes` says which of its modules each name comes from.

    A name that is also a module's would be hidden by it as soon as the module is imported: ValueError.
    """
    if hidden := sorted(set(homes) & set(homes.values())):
        raise ValueError(f"{package}: {', '.join(hidden)} is the name of a module, too")

    def get(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(f"{package}.{homes[name]}"), name)

    return get
