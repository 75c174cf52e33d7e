"""What a span says by its attributes: a call of a model, a tool, an agent, or only its place in the tree.

It is read by the names of Langfuse's SDK or of OpenInference where it has them, else by the GenAI conventions or those
of OpenLLMetry.
"""

from collections.abc import Mapping, Sequence

from rollbus.producers.imports.formats import genai, openinference
from rollbus.producers.imports.formats import langfuse_observation as langfuse
from rollbus.producers.imports.formats.trace import Fields, ImportedCall, ImportedTool
from rollbus.producers.turns.answer import text_of
from rollbus.producers.turns.foreign_messages import read_json

AGENT_NAMES = (
    *("gen_ai.agent.name", "gen_ai.workflow.name", "agent.name", "graph.node.name", "graph.node.id"),
    "traceloop.entity.name",
)
HAYSTACK_COMPONENT = "haystack.component.name"
"""Haystack's name of an agent, as a component of a pipeline."""
LANGCHAIN_AGENT = "lc_agent_name"
"""In the metadata of what LangChain traces: the agent that it is in."""
ADK_MERGED = "(merged tools)"
"""What Google's ADK names a span that stands for those of several tools at once."""
VERCEL_AGENTS = ("ai.generateText", "ai.streamText", "ai.generateObject", "ai.streamObject")
"""Operations of Vercel's AI SDK that calls of a model and tools are in."""

LANGFUSE = "langfuse.observation."
UNUSED_FIELDS = ("level", "status_message", "cost_details")
"""Fields of an observation that are the span's own as well, or that nobody reads; taken, so that none is counted."""
SPAN_NAMES = {"model": "model.name", "model_parameters": "model.parameters"}
"""Fields of Langfuse's observations that its SDK's spans name differently."""


def read_agent(name: str, fields: Fields) -> str | None:
    """Return the name of the agent that a span is, else the span's; None where it is not an agent."""
    if fields.text("haystack.component.type") == "Agent":
        return fields.text(HAYSTACK_COMPONENT) or name
    if _observation_kind(fields) in langfuse.AGENTS:
        return name
    if fields.text("ai.operationId") in VERCEL_AGENTS:
        return fields.text("ai.telemetry.functionId") or name
    is_agent = (
        fields.text(openinference.KIND) in openinference.AGENTS
        or _langchain_agent(fields) == name
        or fields.text("gen_ai.operation.name") in genai.AGENTS
        or fields.text("traceloop.span.kind") in ("agent", "workflow")
    )
    return (fields.text(*AGENT_NAMES) or name) if is_agent else None


def _langchain_agent(fields: Fields) -> str | None:
    """Return the name of the agent of LangChain that a span is in; the agent's own span has its name."""
    metadata = read_json(fields.take("metadata"))
    if isinstance(metadata, Mapping):
        return metadata.get(LANGCHAIN_AGENT)
    quoted_name = fields.text(f"{LANGFUSE}metadata.{LANGCHAIN_AGENT}")
    return None if quoted_name is None else quoted_name.strip('"')


def is_tool(fields: Fields) -> bool:
    """Say whether a span is the use of a tool."""
    if fields.text("gen_ai.tool.name") == ADK_MERGED:
        return False
    if (kind := fields.text(openinference.KIND)) is not None:
        return kind in openinference.TOOLS
    is_genai = fields.text("gen_ai.operation.name") in genai.TOOLS or fields.text("traceloop.span.kind") == "tool"
    is_other = fields.text(*genai.OTHER_TOOLS["name"]) is not None
    return is_genai or is_other or _observation_kind(fields) in langfuse.TOOLS


def read_content(name: str, fields: Fields, events: Sequence[genai.Event]) -> ImportedCall | ImportedTool | None:
    """Return the call or the tool that a span is; None for one that only has a place in the tree."""
    kind = fields.text(openinference.KIND)
    if observation_kind := _observation_kind(fields):
        reason = fields.take(f"{LANGFUSE}metadata.{langfuse.FINISH_REASON}")
        finish_reason = None if text_of(reason) is None else str(reason).strip('"')
        fields.take(*(f"{LANGFUSE}{field}" for field in UNUSED_FIELDS), "langfuse.internal.is_app_root")
        return langfuse.read_observation(observation_kind, name, _observation(fields), finish_reason)
    if is_tool(fields):
        return genai.read_tool(fields, name, events) if kind is None else openinference.read_tool(fields, name)
    if kind in openinference.CALLS:
        return openinference.read_call(fields)
    is_other = kind is not None or fields.text("traceloop.span.kind") is not None
    if is_other or not genai.is_call(fields.text("gen_ai.operation.name"), fields):
        return None
    return genai.read_call(fields, events)


def _observation_kind(fields: Fields) -> str:
    return (fields.text(f"{LANGFUSE}type") or "").upper()


def _observation(fields: Fields) -> Fields:
    """Return an observation's fields by the names that Langfuse's API has for them."""
    names = ("input", "output", "model", "model_parameters", "usage_details", "completion_start_time")
    return Fields({name: fields.take(LANGFUSE + SPAN_NAMES.get(name, name)) for name in names})
