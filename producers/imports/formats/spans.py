"""What a span says by its attributes: a call of a model, a tool, an agent, or only its place in the tree.

It is read by OpenInference's names where it has them, else by the GenAI conventions or those of OpenLLMetry.
"""

from collections.abc import Sequence

from rollbus.producers.imports.formats import genai, openinference
from rollbus.producers.imports.formats.trace import Fields, ImportedCall, ImportedTool
from rollbus.producers.turns.answer import ServerAnswer

AGENT_NAMES = ("gen_ai.agent.name", "agent.name", "graph.node.name", "graph.node.id", "traceloop.entity.name")
HAYSTACK_TOOL, HAYSTACK_COMPONENT = "haystack.tool.name", "haystack.component.name"
"""Haystack has names of its own: of a tool that an agent uses, and of the agent as a component of a pipeline."""


def read_agent(name: str, fields: Fields) -> str | None:
    """Return the name of the agent that a span is, else the span's; None where it is no agent."""
    if fields.text("haystack.component.type") == "Agent":
        return fields.text(HAYSTACK_COMPONENT) or name
    is_agent = (
        fields.text(openinference.KIND) in openinference.AGENTS
        or fields.text("gen_ai.operation.name") in genai.AGENTS
        or fields.text("traceloop.span.kind") in ("agent", "workflow")
    )
    return (fields.text(*AGENT_NAMES) or name) if is_agent else None


def is_tool(fields: Fields) -> bool:
    """Say whether a span is the use of a tool."""
    if (kind := fields.text(openinference.KIND)) is not None:
        return kind in openinference.TOOLS
    is_genai = fields.text("gen_ai.operation.name") in genai.TOOLS or fields.text("traceloop.span.kind") == "tool"
    return is_genai or fields.text(HAYSTACK_TOOL) is not None


def read_content(name: str, fields: Fields, events: Sequence[genai.Event]) -> ImportedCall | ImportedTool | None:
    """Return the call or the tool that a span is; a call may have got no answer."""
    kind = fields.text(openinference.KIND)
    if is_tool(fields):
        return genai.read_tool(fields, name, events) if kind is None else openinference.read_tool(fields, name)
    if kind in openinference.CALLS:
        return openinference.read_call(fields) or _unanswered(fields.text("llm.model_name"))
    is_other = kind is not None or fields.text("traceloop.span.kind") is not None
    if is_other or not genai.is_call(fields.text("gen_ai.operation.name"), fields):
        return None
    model = fields.text("gen_ai.request.model")
    return genai.read_call(fields, events) or (_unanswered(model) if model else None)


def _unanswered(model: str | None) -> ImportedCall:
    return ImportedCall(request={"model": model, "messages": []}, answer=ServerAnswer(model=model or ""))
