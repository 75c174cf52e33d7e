"""A Google ADK agent whose turns can be trained on: `pip install 'rollbus[adk]' openai`.

rollbus up && rollbus topics create        # Kafka and a model endpoint, if you have none
python examples/adk/agent.py
"""

import asyncio
import os

from google.adk.agents import LlmAgent
from google.adk.apps import App
from google.adk.models.lite_llm import LiteLlm
from google.adk.runners import InMemoryRunner
from google.genai import types
from openai import AsyncOpenAI

import rollbus
from rollbus.producers.integrations.adk import RollbusPlugin

ENDPOINT = os.environ.get("OPENAI_BASE_URL", "http://127.0.0.1:8000/v1")
KAFKA = os.environ.get("KAFKA_BOOTSTRAP_SERVERS", "127.0.0.1:9092")
NAMESPACE = os.environ.get("ROLLBUS_NAMESPACE", "rollbus.")


def stock(item: str) -> str:
    """Say how many of an item are in stock."""
    return f"{item}: {len(item)}"


async def ask(runner: InMemoryRunner, question: str) -> str:
    """Return the agent's last words."""
    session = await runner.session_service.create_session(app_name="shop", user_id="someone")
    message = types.Content(role="user", parts=[types.Part(text=question)])
    text = ""
    async for event in runner.run_async(user_id="someone", session_id=session.id, new_message=message):
        parts = (event.content.parts if event.content else None) or []
        text = "".join(part.text for part in parts if part.text) or text
    return text


async def main() -> None:
    """Ask one question, and report whether the answer names a number."""
    recorder = rollbus.init(bootstrap_servers=KAFKA, namespace=NAMESPACE, producer="adk-example")
    key = rollbus.read_token(ENDPOINT)
    client = recorder.wrap(AsyncOpenAI(base_url=ENDPOINT, api_key=key))
    model = LiteLlm(model="openai/agent", client=client, api_base=ENDPOINT, api_key=key, max_tokens=64)
    agent = LlmAgent(name="keeper", model=model, tools=[stock], instruction="You know the stock.")
    runner = InMemoryRunner(app=App(name="shop", root_agent=agent, plugins=[RollbusPlugin(recorder)]))
    async with recorder.episode(task="stock", example_id="bolts") as episode:
        text = await ask(runner, "How many bolts are there?")
        episode.reward(float(any(character.isdigit() for character in text)))
    await runner.close()
    recorder.close()
    print(text, dict(recorder.counters), sep="\n")


if __name__ == "__main__":
    asyncio.run(main())
