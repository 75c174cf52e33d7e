"""Record what a process does through its libraries, without a change of its code.

    rb = rollbus.init(...)
    patches = rollbus.instrument(rb)          # anywhere; `patches.names` lists what is patched so far
    with rb.episode(task="refund"):
        ...                                   # every call of a model is a turn, in threads and executors too

What is imported already is patched at once, the others when the program imports them. A library is patched whole or
left as it was. Explicit hooks and wrapped clients go on working, and record once.
"""

import logging
import sys
import weakref
from collections.abc import Callable, Collection
from contextlib import ExitStack
from dataclasses import dataclass, field
from importlib import metadata

from rollbus.producers.integrations.patch_at_import import PatchAtImport
from rollbus.producers.integrations.patches import LIBRARIES, PatchOptions
from rollbus.producers.recorder import Recorder

logger = logging.getLogger(__name__)
_BY_RECORDER: "weakref.WeakKeyDictionary[Recorder, Instrumentation]" = weakref.WeakKeyDictionary()
"""What each recorder has patched: patched twice, it would record each call twice."""


@dataclass(slots=True)
class Instrumentation:
    """What `instrument` has patched."""

    failed: dict[str, str] = field(default_factory=dict)
    """Libraries that could not be patched, with their version and the error."""
    untried: dict[str, str] = field(default_factory=dict)
    """Patched libraries that are newer than any version that was tried, with their version."""
    _undo: dict[str, ExitStack] = field(default_factory=dict)
    _import_hook: PatchAtImport | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """The libraries that are patched."""
        return tuple(self._undo)

    def undo(self) -> None:
        """Leave every library as it was."""
        if self._import_hook is not None:
            self._import_hook.remove()
        while self._undo:
            self._undo.popitem()[1].close()


def instrument(
    recorder: Recorder,
    *,
    task: str | None = None,
    child_agents: Collection[str] = (),
    function: Callable[[], str] | None = None,
) -> Instrumentation:
    """Record through every known library; what cannot be patched is logged, and left as it was.

    With `task`, what happens outside of every episode is an episode of its own: the outermost run of a framework, or
    else a single call. Agents named in `child_agents` become child episodes. `function` returns at each call of a model
    the function it is made in; without it, that of the framework or of `rb.function`. Called again with the same
    recorder, it takes the place of the first call. With another recorder, each records what happens in its own
    episodes, and any may be undone first.
    """
    if (earlier := _BY_RECORDER.get(recorder)) is not None:
        earlier.undo()
    instrumentation, options = Instrumentation(), PatchOptions(recorder, task, child_agents, function)
    if not recorder.settings.enabled:
        return instrumentation
    for other in [candidate for candidate in _BY_RECORDER if candidate.episodes.gives_way]:
        other.counts.add("instrumented_by_program")
        _BY_RECORDER.pop(other).undo()
    _BY_RECORDER[recorder] = instrumentation
    recorder.episodes.task_of_calls = task
    loaded_libraries = [name for name in LIBRARIES if name in sys.modules]
    instrumentation._import_hook = PatchAtImport(
        LIBRARIES.keys() - set(loaded_libraries), lambda name: _patch(name, options, instrumentation)
    )
    for name in loaded_libraries:
        _patch(name, options, instrumentation)
    instrumentation._import_hook.install()
    return instrumentation


def _patch(name: str, options: PatchOptions, instrumentation: Instrumentation) -> None:
    library, guard = LIBRARIES[name], options.recorder.guard
    version = "" if not library.distribution else guard.call("version", _version_of, library.distribution, default=None)
    if version is None:
        return  # a module of the program's own that has the library's name
    with ExitStack() as stack:
        try:
            library.patch(options, stack)
        except Exception as error:  # a version that is made differently: the stack takes back what was done
            instrumentation.failed[name] = f"{library.distribution} {version}: {error!r}"
            guard.failed(f"instrument_{name}", RuntimeError(instrumentation.failed[name]))
            return
        instrumentation._undo[name] = stack.pop_all()
    if _number(version) > _number(library.newest):
        instrumentation.untried[name] = version
        logger.warning(
            "rollbus: %s %s is newer than %s, the newest that was tried; it is recorded as far as it goes",
            *(library.distribution, version, library.newest),
        )


def _version_of(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def _number(version: str) -> tuple[int, ...]:
    """Return the first two parts of a version."""
    return tuple(int(part) for part in version.split(".")[:2] if part.isdecimal())
