"""Decisions on who serves → a webhook, each as one POST of JSON: `text` for people, `decision` for programs.

A hook that hangs or fails gets the decision again, after growing pauses, and those after it later: their order stays.
Traffic does not wait for it. A decision may come twice after a restart; its `number` says so. JSON has no form for a
number that is not finite, such as the perplexity of a broken version: it is null.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict

import httpx

from rollbus.runtime.http.loopback import may_use_proxy
from rollbus.schemas.errors import ConfigurationError
from rollbus.schemas.records.delivery import PolicyDecision

TIMEOUT_S = 10.0


class Webhook:
    """One address that receives decisions."""

    def __init__(self, url: str, *, timeout_s: float = TIMEOUT_S) -> None:
        """Raise ConfigurationError for an address that nothing can be posted to."""
        self._url = _parse(url)
        self._client = httpx.Client(timeout=timeout_s, trust_env=may_use_proxy(str(self._url)))

    def notify(self, decision: PolicyDecision) -> None:
        """Post a decision; raises httpx.HTTPError unless it was taken."""
        public = {name: value for name, value in asdict(decision).items() if name != "salt"}
        numbers = {name: value if math.isfinite(value) else None for name, value in decision.numbers.items()}
        self.post({"text": describe(decision), "decision": public | {"numbers": numbers}})

    def post(self, body: Mapping[str, object]) -> None:
        """Post anything; raises httpx.HTTPError unless it was taken."""
        with self._client.stream("POST", self._url, json=body) as answer:  # what it answers may have no end
            if not answer.is_success:
                raise httpx.HTTPError(f"it answers {answer.status_code}")  # its own message would repeat the address

    def close(self) -> None:
        """Close the connections."""
        self._client.close()


def _parse(url: str) -> httpx.URL:
    try:
        parsed = httpx.URL(url.strip())
    except httpx.InvalidURL:
        parsed = httpx.URL()
    if parsed.scheme not in ("http", "https") or not parsed.host:  # the address may hold a secret
        raise ConfigurationError("the webhook's address must begin with https:// or http:// and name a host")
    return parsed


def describe(decision: PolicyDecision) -> str:
    """Return a decision as a line for people."""
    numbers, share = decision.numbers, f"{decision.share:.0%}"
    canary = f"; version {decision.canary} has {share} of the episodes" if decision.canary is not None else ""
    detail = f", {decision.detail}" if decision.detail else ""
    evidence = ""
    if "reward.effect" in numbers:
        effect, low, high = (numbers[f"reward.{name}"] for name in ("effect", "low", "high"))
        evidence = f"; reward {effect:+.3f} [{low:+.3f}, {high:+.3f}]"
        evidence += f" over {numbers['reward.canary_episodes']:.0f} of the canary's episodes"
    decision_text = f"{decision.model}, version {decision.version}: {decision.action} ({decision.reason}{detail})"
    return f"{decision_text}; version {decision.serving} serves{canary}{evidence}"
