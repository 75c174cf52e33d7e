"""`--endpoint`: the workflow is a service elsewhere, which records its model calls in the episodes of the run."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from nat.data_models.finetuning import TrainingStatusEnum
from openai import AsyncOpenAI

from rollbus.producers import EventSink, Recorder, init
from rollbus.schemas.errors import RunStoppedError
from tests.nemo.world import RUN, Endpoint, document, memory_bus, new_run, opened, read, run_epochs


class Service:
    """A service as the toolkit's `nat serve`, that records with rollbus what it asks its model."""

    def __init__(self, model_url: str, sink: EventSink | None) -> None:
        self._model = AsyncOpenAI(base_url=model_url, api_key="none")
        self._recorder: Recorder | None = None
        if sink is not None:
            self._recorder = init(sink=sink, namespace="test.", producer="service", logprob_mode="raw")
            self._model = self._recorder.wrap(self._model, function="<workflow>")
        self.broken: set[str] = set()
        """Questions that are answered with status 500 the next time."""

    async def answer(self, request: web.Request) -> web.StreamResponse:
        question = (await request.json())["input_message"]
        if question in self.broken:
            self.broken.remove(question)
            raise web.HTTPInternalServerError
        if self._recorder is None:
            reply = await self._ask(question)
        else:
            with self._recorder.attach(request.headers):
                reply = await self._ask(question)
            self._recorder.flush(120)
        return web.Response(text=f"data: {json.dumps({'value': reply})}\n\n", content_type="text/event-stream")

    async def _ask(self, question: str) -> str:
        messages: list[Any] = [{"role": "user", "content": question}]
        answer = await self._model.chat.completions.create(model="agent", messages=messages)
        return str(answer.choices[0].message.content)

    async def close(self) -> None:
        await self._model.close()
        if self._recorder is not None:
            self._recorder.close(120)


@asynccontextmanager
async def serve_service(service: Service) -> AsyncIterator[str]:
    app = web.Application()
    app.router.add_post("/generate/full", service.answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await service.close()
        await runner.cleanup()


async def test_a_service_behind_an_endpoint_trains_on_its_own_records(tmp_path: Path) -> None:
    plan = read(tmp_path, document(tmp_path))
    bus, endpoint = memory_bus(plan), Endpoint()
    with endpoint.served() as model_url:
        service = Service(model_url, bus.sink)
        service.broken = {"question 1"}
        async with serve_service(service) as url, opened(plan, bus, Endpoint(), endpoint=url) as components:
            statuses = await run_epochs(components, 2)
            view = components.run.log.view
    assert [status.status for status in statuses] == [TrainingStatusEnum.COMPLETED] * 2
    assert [len(step.trained) for step in view.completed.values()] == [6, 6], "a broken attempt is made again"
    hints = {record.group_hint for record in view.trajectories.values()}
    assert hints == {f"group:{RUN}/{epoch}/e{n}" for epoch in range(2) for n in range(3)}


async def test_a_service_that_records_nothing_is_named(tmp_path: Path) -> None:
    endpoint = Endpoint()
    with endpoint.served() as model_url:
        service = Service(model_url, None)
        async with serve_service(service) as url, new_run(tmp_path, endpoint=url) as components:
            with pytest.raises(RunStoppedError, match=r"No trajectories collected .*no_turns"):
                await run_epochs(components, 1)
