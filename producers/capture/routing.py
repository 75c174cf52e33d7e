"""A call that names a model without a version → the same call with the version of its episode: `agent` → `agent@212`.

A thread reads the decisions about versions, from the first call on. Until it has read them, and where the broker is
away from the start, the application's own name goes out.
"""

import asyncio
import os
import threading
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any

from rollbus.runtime.kafka.connection import KafkaConnection
from rollbus.runtime.tasks import start_thread
from rollbus.schemas.routing import Router

Follow = Callable[[Router], None]
"""Brings the decisions to a router, and goes on until the process ends."""


class VersionRouting:
    """Chooses for the models that it is given; any thread may call."""

    def __init__(self, models: Collection[str], follow: Follow) -> None:
        """`models` are the names, without a version, of the models to choose for."""
        self.router, self._models, self._follow = Router(), frozenset(models), follow
        self._lock = threading.Lock()
        self._process_id = 0
        """Of the process in which the thread runs: a fork leaves it behind; 0 before the first call."""

    def add_version(self, arguments: Mapping[str, Any], episode_id: str) -> Mapping[str, Any]:
        """Return a call's arguments with the name of the version that its episode gets."""
        model = arguments.get("model")
        if not isinstance(model, str) or model not in self._models:
            return arguments
        if self._process_id != os.getpid():
            self._begin_to_follow()
        version = self.router.choose(model, episode_id)
        return arguments if version is None else {**arguments, "model": f"{model}@{version}"}

    def _begin_to_follow(self) -> None:
        with self._lock:
            if self._process_id != os.getpid():
                self._process_id = os.getpid()
                start_thread(partial(self._follow, self.router), "rollbus-routes")


def make_follower(connection: KafkaConnection, namespace: str) -> Follow:
    """Return the function that follows the decisions of a namespace."""
    from rollbus.runtime.kafka.decisions import (
        follow_decisions,
    )  # in the caller's thread: `producers/start.py` says why

    def follow(router: Router) -> None:
        asyncio.run(follow_decisions(connection, namespace, router.use))

    return follow
