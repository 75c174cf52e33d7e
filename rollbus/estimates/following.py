"""New candidates as they come → an estimate of each, published: the gate before the canary, without an operator.

A candidate that has an estimate is not estimated again, and older ones than the serving version never are. What fails
is logged and tried again later: until then delivery waits, and gives the candidate no traffic.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from rollbus.schemas.errors import RollbusError
from rollbus.schemas.records.config import ESTIMATES
from rollbus.trainer.operate.policy_on_log import KnownVersion, list_policy_versions
from rollbus.trainer.settings import TrainerSettings

logger = logging.getLogger(__name__)

LOOK_S = 10.0


def find_due(versions: list[KnownVersion]) -> int | None:
    """Return the newest candidate above the serving version, if it has no estimate."""
    serving = max((each.version for each in versions if each.is_serving), default=-1)
    newest = max((each for each in versions if each.state == "candidate"), key=lambda each: each.version, default=None)
    if newest is None or newest.version <= serving or any(each.name == ESTIMATES for each in newest.evaluations):
        return None
    return newest.version


async def follow_candidates(
    settings: TrainerSettings, estimate: Callable[[int], Awaitable[None]], stop: asyncio.Event
) -> None:
    """Estimate each candidate that is due, until `stop` is set."""
    last = ""
    while not stop.is_set():
        try:
            due = find_due(list(await asyncio.to_thread(list_policy_versions, settings)))
            if due is not None:
                await estimate(due)
            last = ""
        except RollbusError as error:
            if str(error) != last:
                logger.warning("no estimate, trying every %.0f s: %s", LOOK_S, error)
            last = str(error)
        try:
            await asyncio.wait_for(stop.wait(), LOOK_S)
        except TimeoutError:
            continue
