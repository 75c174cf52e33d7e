"""The version that an episode's calls get, where the model's name is asked for without one: `agent` → `agent@212`.

Decisions are followed by a thread of its own, from the first call on. Until they are known, and where the broker is
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
"""Brings decisions to a router until the process ends."""


class VersionRouting:
    """Chooses for the models that it is given; any thread may call."""

    def __init__(self, models: Collection[str], follow: Follow) -> None:
        self.router, self._models, self._follow = Router(), frozenset(models), follow
        self._lock, self._process = threading.Lock(), 0
        """The process in which the thread runs: a fork leaves it behind."""

    def routed(self, arguments: Mapping[str, Any], episode_id: str) -> Mapping[str, Any]:
        """Return a call's arguments with the name of the version that its episode gets."""
        model = arguments.get("model")
        if not isinstance(model, str) or model not in self._models:
            return arguments
        if self._process != os.getpid():
            self._begin_to_follow()
        version = self.router.choose(model, episode_id)
        return arguments if version is None else {**arguments, "model": f"{model}@{version}"}

    def _begin_to_follow(self) -> None:
        with self._lock:
            if self._process != os.getpid():
                self._process = os.getpid()
                start_thread(partial(self._follow, self.router), "rollbus-routes")


def following(connection: KafkaConnection, namespace: str) -> Follow:
    """Return what follows the decisions of a namespace."""
    from rollbus.runtime.kafka.decisions import follow_decisions  # here, not in the thread: `start` says why

    def follow(router: Router) -> None:
        asyncio.run(follow_decisions(connection, namespace, router.use))

    return follow
