"""Who answers a request for a model's bare name: the newest decision, and what an episode got before.

An episode stays with its version while that serves or is the canary. If the version was stopped, the episode goes on
with the one that serves. No clock, no broker: `kafka.decisions` brings the decisions.
"""

import threading
from collections import OrderedDict

from rollbus.schemas.records.delivery import PolicyDecision, route

MOST_EPISODES = 100_000
"""Episodes whose version is remembered; of one that is forgotten the draw by its id says nearly always the same."""


class Router:
    """Versions of episodes, by model; any thread may ask."""

    def __init__(self) -> None:
        self._decisions: dict[str, PolicyDecision] = {}
        self._version_by_episode: OrderedDict[tuple[str, str], int] = OrderedDict()
        self._lock = threading.Lock()

    def use(self, decision: PolicyDecision) -> bool:
        """Take in a decision; return False for one that is not newer than the model's last."""
        newest = self._decisions.get(decision.model)
        if newest is not None and decision.number <= newest.number:
            return False
        self._decisions[decision.model] = decision
        return True

    def decision(self, model: str) -> PolicyDecision | None:
        """Return the newest decision on a model."""
        return self._decisions.get(model)

    def choose(self, model: str, episode_id: str) -> int | None:
        """Return the version that an episode gets; None if nothing was decided on the model."""
        decision = self._decisions.get(model)
        if decision is None or decision.serving is None:
            return None
        if decision.canary is None:
            return decision.serving
        key = (model, episode_id)
        with self._lock:
            version = self._version_by_episode.get(key)
            if version not in (decision.serving, decision.canary):
                version = route(decision, episode_id)
            if version is not None:
                self._version_by_episode[key] = version
                self._version_by_episode.move_to_end(key)
                if len(self._version_by_episode) > MOST_EPISODES:
                    self._version_by_episode.popitem(last=False)
        return version
