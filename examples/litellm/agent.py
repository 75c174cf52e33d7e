"""Calls through LiteLLM whose tokens can be trained on: `pip install 'rollbus[litellm]' openai`.

rollbus up && rollbus topics create        # Kafka and a model endpoint, if you have none
python examples/litellm/agent.py
"""

import json
import os
from typing import Any

import litellm
from openai import OpenAI

import rollbus
from rollbus.producers.integrations.litellm import RollbusLogger

ENDPOINT = os.environ.get("OPENAI_BASE_URL", "http://127.0.0.1:8000/v1")
KAFKA = os.environ.get("KAFKA_BOOTSTRAP_SERVERS", "127.0.0.1:9092")
NAMESPACE = os.environ.get("ROLLBUS_NAMESPACE", "rollbus.")
PARAMETERS = {"type": "object", "properties": {"item": {"type": "string"}}, "required": ["item"]}
TOOLS = [{"type": "function", "function": {"name": "stock", "description": "Count.", "parameters": PARAMETERS}}]


def stock(item: str) -> str:
    """Say how many of an item are in stock."""
    return f"{item}: {len(item)}"


def run(client: OpenAI, recorder: rollbus.Recorder, question: str) -> str:
    """Let the model answer, calling the tool as often as it asks for it (at most four times)."""
    messages: list[Any] = [{"role": "user", "content": question}]
    for _ in range(4):
        answer = litellm.completion(model="openai/agent", messages=messages, tools=TOOLS, max_tokens=64, client=client)
        message = answer.choices[0].message
        if not message.tool_calls:
            return message.content or ""
        messages.append(message.model_dump(exclude_none=True))
        for call in message.tool_calls:
            result = stock(**json.loads(call.function.arguments))
            recorder.tool("stock", arguments=call.function.arguments, result=result, tool_call_id=call.id)
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
    return ""


def main() -> None:
    """Ask one question, and report whether the answer names a number."""
    recorder = rollbus.init(bootstrap_servers=KAFKA, namespace=NAMESPACE, producer="litellm-example")
    litellm.callbacks.append(RollbusLogger(recorder))
    client = recorder.wrap(OpenAI(base_url=ENDPOINT, api_key=rollbus.read_token(ENDPOINT)))
    with recorder.episode(task="stock", example_id="bolts") as episode:
        text = run(client, recorder, "How many bolts are there?")
        episode.reward(float(any(character.isdigit() for character in text)))
    recorder.close()
    print(text, dict(recorder.counters), sep="\n")


if __name__ == "__main__":
    main()
