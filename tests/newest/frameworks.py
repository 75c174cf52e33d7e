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
    """Whether its hook reports tools."""

    def program(self, name: str) -> Path:
        """Its page, or else an example."""
        page = PAGES / f"{name}.md"
        return page if page.exists() else PROGRAMS / f"{name}.py"


FRAMEWORKS: Mapping[str, Framework] = {
    "openai": Framework(("openai",), tools=False),
    "litellm": Framework(("litellm",), tools=False),
    "langchain": Framework(("langchain", "langgraph", "langchain-openai")),
    "llama-index": Framework(("llama-index-core", "llama-index-llms-openai-like")),
    "adk": Framework(("google-adk", "litellm")),
    "openai-agents": Framework(("openai-agents",)),
    "hosted-vllm": Framework(("litellm",), tools=False),
    "pydantic-ai": Framework(("pydantic-ai-slim[openai]",), tools=False),
    "instructor": Framework(("instructor",), tools=False),
    "dspy": Framework(("dspy",), tools=False),
    "autogen": Framework(("autogen-agentchat", "autogen-ext[openai]"), tools=False),
    "haystack": Framework(("haystack-ai",), tools=False),
}
