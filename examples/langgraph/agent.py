"""A LangGraph agent whose turns can be trained on: `pip install 'rollbus[langchain]' langgraph`.

rollbus up && rollbus topics create        # Kafka and a model endpoint, if you have none
python examples/langgraph/agent.py
"""

import os
from typing import Annotated, Any, TypedDict

from langchain_core.messages import AnyMessage, HumanMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.prebuilt import ToolNode, tools_condition

import rollbus
from rollbus.producers.integrations.langchain import RollbusHandler, record_model

ENDPOINT = os.environ.get("OPENAI_BASE_URL", "http://127.0.0.1:8000/v1")
KAFKA = os.environ.get("KAFKA_BOOTSTRAP_SERVERS", "127.0.0.1:9092")
NAMESPACE = os.environ.get("ROLLBUS_NAMESPACE", "rollbus.")


@tool
def stock(item: str) -> str:
    """Say how many of an item are in stock."""
    return f"{item}: {len(item)}"


class State(TypedDict):
    """The conversation so far."""

    messages: Annotated[list[AnyMessage], add_messages]


def build(model: Any) -> Any:
    """Return the graph: the model plans, the tools run, until the model asks for none."""
    planner = model.bind_tools([stock])

    def plan(state: State) -> dict[str, Any]:
        return {"messages": [planner.invoke(state["messages"])]}

    graph = StateGraph(State)
    graph.add_node("plan", plan)
    graph.add_node("tools", ToolNode([stock]))
    graph.add_edge(START, "plan")
    graph.add_conditional_edges("plan", tools_condition, {"tools": "tools", END: END})
    graph.add_edge("tools", "plan")
    return graph.compile()


def main() -> None:
    """Ask one question, and report whether the answer names a number."""
    recorder = rollbus.init(bootstrap_servers=KAFKA, namespace=NAMESPACE, producer="langgraph-example")
    plain = ChatOpenAI(model="agent", base_url=ENDPOINT, api_key=rollbus.read_token(ENDPOINT), max_tokens=64)
    model = record_model(plain, recorder)
    graph = build(model)
    with recorder.episode(task="stock", example_id="bolts") as episode:
        question = {"messages": [HumanMessage("How many bolts are there?")]}
        answer = graph.invoke(question, config={"callbacks": [RollbusHandler(recorder)], "recursion_limit": 8})
        text = str(answer["messages"][-1].content)
        episode.reward(float(any(character.isdigit() for character in text)))
    recorder.close()
    print(text, dict(recorder.counters), sep="\n")


if __name__ == "__main__":
    main()
