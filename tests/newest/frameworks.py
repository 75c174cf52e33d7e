"""What is tried: a program of each framework, and what it needs from the package index."""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
PAGES, PROGRAMS = ROOT / "docs" / "capture", ROOT / "examples" / "frameworks"


class Framework(NamedTuple):
    """One framework."""

    distributions: tuple[str, ...]
    """Installed at their newest; the first is the one that the table names."""
    tools: bool = True
    """Whether its hook, or its spans, report tools."""
    own_tools: tuple[str, ...] = ()
    """What it offers the model in addition to the program's."""
    agents: bool = True
    """Whether they name the agent: `keeper` in every program."""

    def program(self, name: str) -> Path:
        """Its page, or else an example."""
        page = PAGES / f"{name}.md"
        return page if page.exists() else PROGRAMS / f"{name}.py"


OTEL = "opentelemetry-sdk"
FRAMEWORKS: Mapping[str, Framework] = {
    "openai": Framework(("openai",), tools=False, agents=False),
    "litellm": Framework(("litellm",), tools=False, agents=False),
    "langchain": Framework(("langchain", "langgraph", "langchain-openai")),
    "llama-index": Framework(("llama-index-core", "llama-index-llms-openai-like")),
    "adk": Framework(("google-adk", "litellm")),
    "openai-agents": Framework(("openai-agents",)),
    "hosted-vllm": Framework(("litellm",), tools=False, agents=False),
    "pydantic-ai": Framework(("pydantic-ai-slim[openai]", OTEL)),
    "instructor": Framework(("instructor",), tools=False, agents=False),
    "autogen": Framework(("autogen-agentchat", "autogen-ext[openai]", OTEL)),
    "strands": Framework(("strands-agents[openai]>=1", OTEL)),
    "haystack": Framework(("haystack-ai", "opentelemetry-haystack", OTEL)),
    "agno": Framework(("agno", "openai", "openinference-instrumentation-agno", OTEL)),
    "crewai": Framework(("crewai", "openinference-instrumentation-crewai", OTEL)),
    "dspy": Framework(("dspy", "openinference-instrumentation-dspy", OTEL), own_tools=("submit",), agents=False),
}
