"""What the tests of each framework under the telemetry exporter share: where it sends, a tool, a model, a request."""

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any

from nat.builder.builder import Builder
from nat.builder.function_info import FunctionInfo
from nat.cli.register_workflow import register_function, register_telemetry_exporter
from nat.data_models.function import FunctionBaseConfig
from nat.data_models.telemetry_exporter import TelemetryExporterBaseConfig
from nat.runtime.session import SessionManager

from rollbus.nemo.production.request_labels import identity_header_of
from rollbus.nemo.production.telemetry import recorded_requests
from rollbus.producers import MemorySink, init
from tests.producers.integrations.agent_server import AgentServer
from tests.web import QuietHandler, serve

SINK: list[MemorySink] = []
"""Where the exporter of the running test sends."""


class MemoryTelemetryConfig(TelemetryExporterBaseConfig, name="test_rollbus"):
    sample_rate: float = 1.0


class StockConfig(FunctionBaseConfig, name="test_stock"):
    pass


@register_telemetry_exporter(config_type=MemoryTelemetryConfig)
async def memory_telemetry(config: MemoryTelemetryConfig, builder: Builder) -> AsyncIterator[Any]:
    recorder = init(sink=SINK[-1], namespace="t.", producer="nat", sample_rate=config.sample_rate)
    async with recorded_requests(recorder, identity_header=identity_header_of(builder)) as exporter:
        yield exporter


@register_function(config_type=StockConfig)
async def stock_function(config: StockConfig, builder: Builder) -> AsyncIterator[FunctionInfo]:
    async def stock(item: str) -> str:
        """Count what is in stock."""
        return f"{item}: 7"

    yield FunctionInfo.from_fn(stock, description="Count what is in stock.")


@contextmanager
def serve_model(model: AgentServer) -> Iterator[str]:
    """Serve a scripted model; yield its address."""

    class Handler(QuietHandler):
        def do_POST(self) -> None:
            answer: Any = model._make_answer(self.read_json())
            if not isinstance(answer, list):
                self.answer(answer)
                return
            lines = [*(json.dumps(chunk) for chunk in answer), "[DONE]"]
            self.answer_text("".join(f"data: {line}\n\n" for line in lines), "text/event-stream")

    with serve(Handler) as address:
        yield f"{address}/v1"


async def ask(manager: SessionManager, question: str) -> str:
    """Return a workflow's answer to one request."""
    async with manager.session() as session, session.run(question) as runner:
        return str(await runner.result(to_type=str))
