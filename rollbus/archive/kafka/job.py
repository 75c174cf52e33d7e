"""An archiving as a job that a schedule starts: its last heartbeat stays, so that alarms can judge by it."""

import asyncio
from contextlib import suppress

from rollbus.archive.kafka.run import ArchiveRun
from rollbus.runtime.health.heart import Heart, beating

FIRST_BEAT_S = 10.0
"""How long a job that is done waits for its first beat: it may end sooner than a connection takes."""


async def run_job(work: ArchiveRun, heart: Heart) -> None:
    """Archive, and beat meanwhile; raises what the archiving raises."""
    async with beating(heart, work.report):
        await work.run()
        with suppress(TimeoutError):
            await asyncio.wait_for(heart.has_beaten.wait(), FIRST_BEAT_S)
