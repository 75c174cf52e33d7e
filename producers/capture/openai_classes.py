"""The OpenAI package's own classes, recorded: the calls of every client in the process, own or a library's.

The same methods as `openai_client` wraps, replaced on the classes; a client that is wrapped in addition is recorded by
its wrapping alone.
"""

import functools
import importlib
import weakref
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

from rollbus.producers.capture.call import Capture
from rollbus.producers.capture.chat import CHAT
from rollbus.producers.capture.completions import COMPLETIONS
from rollbus.producers.capture.openai_client import METHODS, RECORDED_BY, recorded_method
from rollbus.producers.capture.responses import RESPONSES
from rollbus.producers.capture.surface import Surface

RESOURCES: Mapping[str, tuple[str, Surface]] = {
    "chat.completions": ("Completions", CHAT),
    "completions": ("Completions", COMPLETIONS),
    "responses": ("Responses", RESPONSES),
}
"""Modules of `openai.resources`, with their class; an asynchronous one of the same name is next to it."""


def patch_classes(options: Capture, stack: ExitStack) -> None:
    """Record the calls of all clients until the stack is closed."""
    captures = _Captures(options)
    stack.callback(captures.stop)
    for name, (class_name, surface) in RESOURCES.items():
        module = importlib.import_module(f"openai.resources.{name}")
        for cls in (getattr(module, class_name), getattr(module, f"Async{class_name}")):
            for method in METHODS:
                if (original := vars(cls).get(method)) is not None:
                    recorded = recorded_method(original, captures.of, surface)
                    setattr(recorded, RECORDED_BY, options.outbox)
                    setattr(cls, method, recorded)
                    stack.callback(_restore, cls, method, original, recorded)


def _restore(cls: type, name: str, original: Any, recorded: Any) -> None:
    """Put the original back, unless another tool has replaced ours since, which then passes calls on."""
    if vars(cls).get(name) is recorded:
        setattr(cls, name, original)


class _Captures:
    """What the calls of each client share."""

    def __init__(self, options: Capture) -> None:
        self._options = options
        self._known: weakref.WeakKeyDictionary[Any, Capture] = weakref.WeakKeyDictionary()
        self._stopped = False

    def of(self, arguments: tuple[Any, ...]) -> Capture | None:
        """Return that of the client whose resource is called; None where nothing is recorded any more."""
        client = getattr(arguments[0], "_client", None) if arguments else None
        if self._stopped or client is None:
            return None
        if (known := self._known.get(client)) is None:
            self._options.outbox.keep_secret(getattr(client, "api_key", None))
            reference = weakref.ref(client)
            known = self._known[client] = replace(
                self._options,
                server=str(getattr(client, "base_url", "")),
                refusing={},
                key=functools.partial(_key_of, reference),
            )
        return known

    def stop(self) -> None:
        """Record no more."""
        self._stopped = True


def _key_of(client: "weakref.ref[Any]") -> object:
    return getattr(client(), "api_key", None)
