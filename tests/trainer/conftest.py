"""Trainers on a log in memory: what they do meanwhile is compared with what an update takes, so both are on one clock
that no other process moves."""

import asyncio
from collections.abc import Callable, Mapping

import pytest

from tests.idle_time import IdleTimeLoop

IN_MEMORY = {"loop", "ledger", "operate"}


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"loop": IdleTimeLoop if item.path.parent.name in IN_MEMORY else asyncio.new_event_loop}
