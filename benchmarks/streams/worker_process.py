"""The worker of `pipeline` as a process: open when the block begins, and what it reports is there after the block."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from benchmarks.streams.pipeline import STAGES


@asynccontextmanager
async def a_worker(
    bootstrap_servers: str, namespace: str, changes: dict[str, Any], stages: Sequence[str] = STAGES
) -> AsyncIterator[dict[str, Any]]:
    """Run some of the three stages; `changes` are settings."""
    arguments = (bootstrap_servers, namespace, json.dumps(changes), ",".join(stages))
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "benchmarks.streams.pipeline", *arguments),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    opened = await process.stdout.readline()
    if not opened:
        sys.exit(f"the worker of {', '.join(stages)} did not start")
    done: dict[str, Any] = {"opened": json.loads(opened)}
    yield done
    output, _ = await process.communicate(b"")
    done |= json.loads(output.splitlines()[-1])
