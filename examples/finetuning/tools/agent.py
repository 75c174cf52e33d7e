"""A tool-using agent as a LangGraph graph, and its reward: right answers, and a little off for each needless call.

The graph is built around the chat model that the harness hands over, so every call is recorded with its tokens.
"""

from typing import Any

from langchain_core.tools import tool
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode

from rollbus.harness import EvalInputItem, EvalOutputItem

CALL_COST = 0.05
NEEDED_CALLS = 1


@tool
def price(item: str) -> float:
    """Return the price of an item in euros."""
    return {"apple": 0.4, "bread": 3.2, "cheese": 5.6, "milk": 1.3}.get(item.lower(), 0.0)


def graph(model: Any) -> Any:
    """Return the graph: ask the model, run the tools it calls, ask again."""
    asked = model.bind_tools([price])

    async def call_model(state: MessagesState) -> dict[str, Any]:
        return {"messages": [await asked.ainvoke(state["messages"])]}

    def next_step(state: MessagesState) -> str:
        return "tools" if getattr(state["messages"][-1], "tool_calls", None) else END

    made = StateGraph(MessagesState)
    made.add_node("model", call_model)
    made.add_node("tools", ToolNode([price]))
    made.add_edge(START, "model")
    made.add_conditional_edges("model", next_step)
    made.add_edge("tools", "model")
    return made.compile()


def score(item: EvalInputItem) -> EvalOutputItem:
    """Return 1 for the right answer, less a little for each call beyond the one that is needed."""
    right = str(item.expected_output_obj) in str(item.output_obj)
    calls = sum(
        message["role"] == "tool"
        for step in item.trajectory
        if step.event_type == "LLM_START"
        for message in step.input
    )
    spent = CALL_COST * max(0, calls - NEEDED_CALLS)
    return EvalOutputItem(id=item.id, score=float(right) - spent, reasoning=f"right={right}, calls={calls}")
