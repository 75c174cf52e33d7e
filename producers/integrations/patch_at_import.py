"""Patch libraries at their import: a finder in front of the others, which finds a module by asking them.

It asks only those behind itself: two that asked one another would never end.
A module whose loader takes no attribute is not patched: its code is then not ours to follow, and the import must go on.
"""

import sys
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from itertools import dropwhile, islice
from types import ModuleType
from typing import Any


class PatchAtImport(MetaPathFinder):
    """Calls a function once for each of some modules, when the program has imported it."""

    def __init__(self, names: Collection[str], patch: Callable[[str], object]) -> None:
        """`patch` raises nothing."""
        self._names, self._patch = set(names), patch

    def install(self) -> None:
        """Look at every import from now on."""
        sys.meta_path.insert(0, self)

    def remove(self) -> None:
        """Patch nothing more, also of the modules that were found and are not executed yet."""
        self._names.clear()
        with suppress(ValueError):
            sys.meta_path.remove(self)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return what the finders behind this one find, with our patch behind the module's own code."""
        if fullname not in self._names:
            return None
        for finder in islice(dropwhile(lambda finder: finder is not self, tuple(sys.meta_path)), 1, None):
            find = getattr(finder, "find_spec", None)
            if find is not None and (spec := find(fullname, path, target)) is not None:
                self._patch_after_execution(fullname, spec.loader)
                return spec  # type: ignore[no-any-return]
        return None

    def _patch_after_execution(self, name: str, loader: Any) -> None:
        execute: Any = getattr(loader, "exec_module", None)

        def execute_and_patch(module: ModuleType) -> None:
            execute(module)
            if name in self._names:
                self._names.discard(name)
                self._patch(name)

        if execute is not None:
            with suppress(AttributeError):  # a loader without attributes of its own: the library stays as it is
                loader.exec_module = execute_and_patch
