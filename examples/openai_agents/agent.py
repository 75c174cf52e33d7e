"""An agent of the OpenAI Agents SDK whose turns can be trained on: `pip install 'rollbus[openai-agents]'`.

rollbus up && rollbus topics create        # Kafka and a model endpoint, if you have none
python examples/openai_agents/agent.py
"""

import asyncio
import os

from agents import Agent, ModelSettings, Runner, function_tool, set_tracing_disabled
from openai import AsyncOpenAI

import rollbus
from rollbus.producers.integrations.openai_agents import RollbusHooks, record_agent

ENDPOINT = os.environ.get("OPENAI_BASE_URL", "http://127.0.0.1:8000/v1")
KAFKA = os.environ.get("KAFKA_BOOTSTRAP_SERVERS", "127.0.0.1:9092")
NAMESPACE = os.environ.get("ROLLBUS_NAMESPACE", "rollbus.")


@function_tool
def stock(item: str) -> str:
    """Say how many of an item are in stock."""
    return f"{item}: {len(item)}"


async def main() -> None:
    """Ask one question, and report whether the answer names a number."""
    set_tracing_disabled(True)  # the SDK's own tracing sends to OpenAI
    recorder = rollbus.init(bootstrap_servers=KAFKA, namespace=NAMESPACE, producer="openai-agents-example")
    client = AsyncOpenAI(base_url=ENDPOINT, api_key=rollbus.read_token(ENDPOINT))
    agent = record_agent(
        Agent(name="keeper", tools=[stock], model_settings=ModelSettings(max_tokens=64)),
        recorder,
        client=client,
        model="agent",
    )
    async with recorder.episode(task="stock", example_id="bolts") as episode:
        result = await Runner.run(agent, "How many bolts are there?", hooks=RollbusHooks(recorder), max_turns=4)
        text = str(result.final_output)
        episode.reward(float(any(character.isdigit() for character in text)))
    recorder.close()
    print(text, dict(recorder.counters), sep="\n")


if __name__ == "__main__":
    asyncio.run(main())
