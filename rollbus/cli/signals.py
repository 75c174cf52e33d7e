"""End a command that follows a topic: SIGTERM or Ctrl-C asks it to stop."""

import asyncio
import signal


def stop_on_signals() -> asyncio.Event:
    """Return an event that SIGTERM and SIGINT set in the running loop."""
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    return stop
