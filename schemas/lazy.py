"""Public names of a package that are imported when they are first used, so that importing the package costs nothing.

__getattr__ = lazy_names(__name__, {"Sink": "sink"})
"""

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazy_names(package: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """Return the package's `__getattr__`; `homes` says which of its modules each name comes from."""

    def get(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(f"{package}.{homes[name]}"), name)

    return get
