"""Writes what tracing SDKs export of the same calls: `python make.py openllmetry openllmetry.json`.

Each name of `SDKS` says what to `pip install`, in an environment of its own; besides, openai and
opentelemetry-exporter-otlp-proto-common.
"""

# It runs beside the newest releases, in environments of their own.
# mypy: ignore-errors

import gc
import json
import os
import sys
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import import_module
from typing import Any, ClassVar

from programs import Cases, adk_cases, agents_cases, client_cases, langchain_cases, pydantic_cases
from server import Server, play, request_of


def new_client(url: str) -> Any:
    """A client of OpenAI's package."""
    from openai import OpenAI

    return OpenAI(base_url=url, api_key="k", max_retries=0)


def instrumented(module: str, name: str, make: Callable[[str], Cases]) -> Callable[[str], Cases]:
    """Return the cases once an instrumentation is on."""

    def begin(url: str) -> Cases:
        getattr(import_module(module), name)().instrument()
        return make(url)

    return begin


def client_program(url: str) -> Cases:
    """The cases of a client."""
    return client_cases(new_client(url))


def langfuse_client(url: str) -> Cases:
    """The cases of Langfuse's own client for OpenAI."""
    return client_cases(import_module("langfuse.openai").OpenAI(base_url=url, api_key="k", max_retries=0))


def langfuse_langchain(url: str) -> Cases:
    """The cases of LangChain with Langfuse's callback."""
    return langchain_cases(url, [import_module("langfuse.langchain").CallbackHandler()])


def logfire_pydantic(url: str) -> Cases:
    """The cases of pydantic-ai as Logfire has it instrumented."""
    logfire = import_module("logfire")
    logfire.instrument_pydantic_ai()
    return pydantic_cases(url)


SDKS: dict[str, Callable[[str], Cases]] = {
    # openinference-instrumentation-openai
    "openinference": instrumented("openinference.instrumentation.openai", "OpenAIInstrumentor", client_program),
    # openinference-instrumentation-langchain langchain langchain-openai
    "openinference-langchain": instrumented(
        "openinference.instrumentation.langchain", "LangChainInstrumentor", langchain_cases
    ),
    # opentelemetry-instrumentation-openai
    "openllmetry": instrumented("opentelemetry.instrumentation.openai", "OpenAIInstrumentor", client_program),
    # opentelemetry-instrumentation-langchain langchain langchain-openai
    "openllmetry-langchain": instrumented(
        "opentelemetry.instrumentation.langchain", "LangchainInstrumentor", langchain_cases
    ),
    # opentelemetry-instrumentation-openai-v2
    "openai-v2": instrumented("opentelemetry.instrumentation.openai_v2", "OpenAIInstrumentor", client_program),
    # langfuse
    "langfuse": langfuse_client,
    # langfuse langchain langchain-openai
    "langfuse-langchain": langfuse_langchain,
    # pydantic-ai-slim[openai] logfire
    "logfire": logfire_pydantic,
    # openai-agents openinference-instrumentation-openai-agents
    "agents-openinference": instrumented(
        "openinference.instrumentation.openai_agents", "OpenAIAgentsInstrumentor", agents_cases
    ),
    # openai-agents opentelemetry-instrumentation-openai-agents
    "agents-openllmetry": instrumented(
        "opentelemetry.instrumentation.openai_agents", "OpenAIAgentsInstrumentor", agents_cases
    ),
    # google-adk litellm, which writes spans by itself
    "adk": adk_cases,
    # langsmith
    "langsmith": lambda url: client_cases(import_module("langsmith.wrappers").wrap_openai(new_client(url))),
    # langsmith langchain langchain-openai
    "langsmith-langchain": langchain_cases,
}


def trace_spans(name: str, server: Server, path: str) -> None:
    """Write the spans of an SDK."""
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    exporter, flush = InMemorySpanExporter(), list
    if name.startswith("langfuse"):
        langfuse = import_module("langfuse")
        client = langfuse.Langfuse(
            public_key="pk", secret_key="sk", base_url="http://127.0.0.1:9", span_exporter=exporter
        )
        flush = client.flush
    elif name == "logfire":
        processor = SimpleSpanProcessor(exporter)
        import_module("logfire").configure(
            send_to_logfire=False, console=False, additional_span_processors=[processor], service_name="shop"
        )
    else:
        provider = TracerProvider()
        trace.set_tracer_provider(provider)
        provider.add_span_processor(SimpleSpanProcessor(exporter))
    cases = SDKS[name](server.url)

    def collect() -> Any:
        gc.collect()  # a stream that was left ends, for some, only with its object
        flush()
        spans = exporter.get_finished_spans()
        exporter.clear()
        return [request_of(spans)]

    play(cases, server, collect, path)


class _Runs(BaseHTTPRequestHandler):
    """What LangSmith's client sends, as its server keeps it: a run, and later the rest of its fields."""

    runs: ClassVar[dict[str, dict[str, Any]]] = {}

    def do_POST(self) -> None:
        fields = json.loads(self.rfile.read(int(self.headers["content-length"])))
        run_id = fields.get("id") or self.path.rpartition("/")[2]
        self.runs.setdefault(run_id, {}).update({**fields, "id": run_id})
        self.do_GET()

    do_PATCH = do_POST

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, *_: Any) -> None: ...


def trace_runs(name: str, server: Server, path: str) -> None:
    """Write the runs of LangSmith."""
    http = ThreadingHTTPServer(("127.0.0.1", 0), _Runs)
    threading.Thread(target=http.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{http.server_address[1]}"
    os.environ |= {"LANGSMITH_TRACING": "true", "LANGSMITH_ENDPOINT": address, "LANGSMITH_API_KEY": "k"}
    langsmith = import_module("langsmith")
    utils = import_module("langsmith.run_trees")
    client = langsmith.Client(api_url=address, api_key="k", auto_batch_tracing=False)
    utils._CLIENT = client
    langsmith.configure(client=client)
    cases = SDKS[name](server.url)

    def collect() -> Any:
        gc.collect()
        client.flush()
        runs = list(_Runs.runs.values())
        _Runs.runs.clear()
        for run in runs:  # name the machine
            (run.get("extra") or {}).pop("runtime", None)
            run["error"] = (run.get("error") or "").partition("Traceback")[0] or None
            metadata = (run.get("extra") or {}).get("metadata") or {}
            for field in [field for field in metadata if field.startswith(("LANGSMITH", "LANGCHAIN", "revision"))]:
                del metadata[field]
        return runs

    play(cases, server, collect, path)


if __name__ == "__main__":
    _, sdk, written = sys.argv
    model_server = Server()
    os.environ |= {
        "OPENAI_API_KEY": "k",
        "OPENAI_BASE_URL": model_server.url,
        "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT": "SPAN_ONLY",
        "OTEL_SEMCONV_STABILITY_OPT_IN": "gen_ai_latest_experimental",
    }
    (trace_runs if sdk.startswith("langsmith") else trace_spans)(sdk, model_server, written)
    os._exit(0)
