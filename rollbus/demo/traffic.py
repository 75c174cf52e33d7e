"""What brings a demo's traffic, in a process of its own."""

import asyncio
import logging
import signal
from typing import Protocol

from openai import AsyncOpenAI, DefaultAsyncHttpxClient

from rollbus.producers import Recorder

logger = logging.getLogger(__name__)


class Traffic(Protocol):
    """Traffic that ends by itself, or soon after `stop`."""

    async def run(self) -> None:
        """Bring it."""

    def stop(self) -> None:
        """Begin nothing more."""


def local_client(url: str, api_key: str) -> AsyncOpenAI:
    """Return a client of the model on this machine, which no proxy of the environment is asked for."""
    http = DefaultAsyncHttpxClient(trust_env=False)
    return AsyncOpenAI(base_url=url, api_key=api_key, max_retries=4, http_client=http)


async def bring(traffic: Traffic, recorder: Recorder, *, flush_s: float) -> None:
    """Run until the traffic ends, or SIGTERM or Ctrl-C has stopped it; then deliver what was recorded."""
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, traffic.stop)
    try:
        await traffic.run()
    finally:
        delivered = await asyncio.to_thread(recorder.close, flush_s)
        logger.info("delivered=%s counters=%s", delivered, dict(recorder.counters))
