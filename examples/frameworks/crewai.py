"""A crew of one agent with a tool."""

import os

from crewai import LLM, Agent, Crew, Task
from crewai.tools import tool
from openinference.instrumentation.crewai import CrewAIInstrumentor
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider

trace.set_tracer_provider(TracerProvider())
CrewAIInstrumentor().instrument()


@tool("stock")
def stock(item: str) -> str:
    """Say how many of an item are in stock."""
    return f"{item}: 7"


def main() -> None:
    """Ask."""
    llm = LLM(model="openai/agent", base_url=os.environ["OPENAI_BASE_URL"], api_key="k")
    keeper = Agent(role="keeper", goal="Count.", backstory="You count.", llm=llm, tools=[stock])
    task = Task(description="How many bolts are there?", expected_output="A number", agent=keeper)
    Crew(agents=[keeper], tasks=[task]).kickoff()
