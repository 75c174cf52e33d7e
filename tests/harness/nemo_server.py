"""A server that speaks the NeMo microservices' routes for a DPO job, and keeps what it was told."""

import base64
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web


@dataclass(slots=True)
class NeMoServer:
    """Answers each question about a job with the next of `states`; the last one stays."""

    states: list[dict[str, Any]] = field(default_factory=lambda: [{"status": "completed", "percentage_done": 100.0}])
    deployments: list[str] = field(default_factory=lambda: ["ready"])
    """How the deployment stands when it is asked about; the last one stays."""
    asked_deployment: int = 0
    known: set[str] = field(default_factory=set)
    """Names that are there already."""
    files: dict[str, str] = field(default_factory=dict)
    jobs: list[dict[str, Any]] = field(default_factory=list)
    posted: list[tuple[str, Any]] = field(default_factory=list)
    asked: int = 0
    url: str = ""

    async def namespace(self, request: web.Request) -> web.Response:
        body = dict(await request.post()) if request.content_type != "application/json" else await request.json()
        return self._created(request.path, str(body.get("id") or body.get("namespace")), body)

    async def dataset(self, request: web.Request) -> web.Response:
        body = await request.json()
        return self._created(request.path, str(body["name"]), body)

    async def job(self, request: web.Request) -> web.Response:
        self.jobs.append(await request.json())
        return web.json_response({"id": f"cust-{len(self.jobs)}", "output_model": "team/model@1", "status": "created"})

    async def list_jobs(self, request: web.Request) -> web.Response:
        return web.json_response({"data": []})

    async def status(self, request: web.Request) -> web.Response:
        state = self.states[min(self.asked, len(self.states) - 1)]
        self.asked += 1
        return web.json_response(state, status=int(state.get("http", 200)))

    async def deployment(self, request: web.Request) -> web.Response:
        body = await request.json()
        return self._created(request.path, str(body["name"]), body)

    async def deployed(self, request: web.Request) -> web.Response:
        state = self.deployments[min(self.asked_deployment, len(self.deployments) - 1)]
        self.asked_deployment += 1
        return web.json_response({"status_details": {"status": state, "description": f"it is {state}"}})

    async def create_repo(self, request: web.Request) -> web.Response:
        self.posted.append((request.path, await request.json()))
        return web.json_response({"url": f"{self.url}/v1/hf/datasets/team/pairs"})

    async def preupload(self, request: web.Request) -> web.Response:
        files = [
            {"path": one["path"], "uploadMode": "regular", "shouldIgnore": False}
            for one in (await request.json())["files"]
        ]
        return web.json_response({"files": files})

    async def commit(self, request: web.Request) -> web.Response:
        for line in (await request.text()).splitlines():
            item = json.loads(line)
            if item["key"] == "file":
                self.files[item["value"]["path"]] = base64.b64decode(item["value"]["content"]).decode()
        found = {"commitOid": "0" * 40, "commitUrl": f"{self.url}/v1/hf/datasets/team/pairs/commit/0", "success": True}
        return web.json_response(found)

    def _created(self, path: str, name: str, body: Any) -> web.Response:
        self.posted.append((path, body))
        if name in self.known:
            return web.json_response({"detail": "exists"}, status=409)
        return web.json_response(body)


@asynccontextmanager
async def serving(server: NeMoServer) -> AsyncIterator[NeMoServer]:
    """Serve on a free port while the block lasts."""
    app, hub = web.Application(), "/v1/hf/api"
    app.router.add_post("/v1/namespaces", server.namespace)
    app.router.add_post("/v1/datastore/namespaces", server.namespace)
    app.router.add_post("/v1/datasets", server.dataset)
    app.router.add_post("/v1/customization/jobs", server.job)
    app.router.add_get("/v1/customization/jobs", server.list_jobs)
    app.router.add_get("/v1/customization/jobs/{job}/status", server.status)
    app.router.add_post("/v1/deployment/model-deployments", server.deployment)
    app.router.add_get("/v1/deployment/model-deployments/team/{name}", server.deployed)
    app.router.add_post(f"{hub}/repos/create", server.create_repo)
    app.router.add_post(hub + "/datasets/{owner}/{name}/preupload/{revision}", server.preupload)
    app.router.add_post(hub + "/datasets/{owner}/{name}/commit/{revision}", server.commit)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    server.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield server
    finally:
        await runner.cleanup()
