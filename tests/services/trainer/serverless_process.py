"""W&B's serverless training for tests of whole processes: the shipped fake, in a process that outlives a trainer.

`serve` runs where ART is imported. A second port lets a test look at the service (GET) and hold its answers (PUT).
"""

import asyncio
from typing import Any

from aiohttp import web

from rollbus.stack_settings import HOST
from rollbus.trainer.backends.art_terms.groups import TRAJECTORY_ID
from rollbus.trainer.backends.serverless.memory import MemoryJob, MemoryServerless


def serve(api_key: str, control_port: str) -> None:
    """Answer until the process is ended."""
    asyncio.run(_serve(MemoryServerless(api_key=api_key), int(control_port)))


async def _serve(service: MemoryServerless, control_port: int) -> None:
    async with service.serve() as url:

        async def describe(request: web.Request) -> web.Response:
            return web.json_response({"url": url, **_describe(service)})

        async def hold(request: web.Request) -> web.Response:
            service.held_calls = set(await request.json())
            return web.json_response({})

        app = web.Application()
        app.add_routes([web.get("/", describe), web.put("/held-calls", hold)])
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, HOST, control_port).start()
        await asyncio.Event().wait()


def _describe(service: MemoryServerless) -> dict[str, Any]:
    """Return the members of each job that was sent, the jobs that moved the weights, and the checkpoints."""
    models = list(service.models.values())
    return {
        "jobs": {job.job_id: _list_members(job) for job in service.jobs.values()},
        "trained_jobs": [job_id for model in models for job_id in model.trained_jobs],
        "steps": [step for model in models for step in model.checkpoints],
    }


def _list_members(job: MemoryJob) -> list[str]:
    return [str(trajectory.metadata[TRAJECTORY_ID]) for group in job.groups for trajectory in group.trajectories]
