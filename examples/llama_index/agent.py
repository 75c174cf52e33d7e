"""A LlamaIndex agent whose turns can be trained on: `pip install 'rollbus[llama-index]'`.

rollbus up && rollbus topics create        # Kafka and a model endpoint, if you have none
python examples/llama_index/agent.py
"""

import asyncio
import os

from llama_index.core.agent.workflow import FunctionAgent
from llama_index.llms.openai_like import OpenAILike

import rollbus
from rollbus.producers.integrations.llama_index import install, record_llm

ENDPOINT = os.environ.get("OPENAI_BASE_URL", "http://127.0.0.1:8000/v1")
KAFKA = os.environ.get("KAFKA_BOOTSTRAP_SERVERS", "127.0.0.1:9092")
NAMESPACE = os.environ.get("ROLLBUS_NAMESPACE", "rollbus.")


def stock(item: str) -> str:
    """Say how many of an item are in stock."""
    return f"{item}: {len(item)}"


async def main() -> None:
    """Ask one question, and report whether the answer names a number."""
    recorder = rollbus.init(bootstrap_servers=KAFKA, namespace=NAMESPACE, producer="llama-index-example")
    install(recorder)
    llm = OpenAILike(
        model="agent",
        api_base=ENDPOINT,
        api_key=rollbus.read_token(ENDPOINT),
        max_tokens=64,
        is_chat_model=True,
        is_function_calling_model=True,
    )
    agent = FunctionAgent(name="keeper", description="Knows the stock.", tools=[stock], llm=record_llm(llm, recorder))
    async with recorder.episode(task="stock", example_id="bolts") as episode:
        text = str(await agent.run("How many bolts are there?", max_iterations=4))
        episode.reward(float(any(character.isdigit() for character in text)))
    recorder.close()
    print(text, dict(recorder.counters), sep="\n")


if __name__ == "__main__":
    asyncio.run(main())
