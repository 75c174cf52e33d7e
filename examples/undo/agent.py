"""An agent whose users like answers of even tokens: `play` records episodes with their feedback, `measure` looks on.

Stands for a real agent and its held-out tasks: what it is to learn is plain, so three steps are enough to see it.
"""

import asyncio
import sys
import zlib
from typing import Any

from openai import AsyncOpenAI

import rollbus

GROUPS, ATTEMPTS, TURNS = 12, 4, 2
HELD_OUT = 48
MODEL = "agent"


async def play(client: Any, recorder: rollbus.Recorder, group: str, attempt: int) -> None:
    """Record one episode and what its user thought of it."""
    async with recorder.episode(task="letters", example_id=group, group_id=group, group_size=ATTEMPTS) as episode:
        messages: list[Any] = [{"role": "user", "content": f"choose a letter {group}"}]
        tokens: list[int] = []
        for turn in range(TURNS):
            seed = zlib.crc32(f"{group} {attempt} {turn}".encode())
            answer = await client.chat.completions.create(model=MODEL, messages=messages, max_tokens=4, seed=seed)
            messages += [{"role": "assistant", "content": answer.choices[0].message.content or ""}]
            messages += [{"role": "user", "content": "again"}]
            tokens += answer.choices[0].token_ids
        episode.reward(liked(tokens))


async def play_all(model_url: str, kafka: str, namespace: str) -> None:
    """Play every attempt of every group, and wait until the broker has it all."""
    recorder = rollbus.init(bootstrap_servers=kafka, namespace=namespace, producer="letters", logprobs="force")
    try:
        async with AsyncOpenAI(base_url=model_url, api_key=rollbus.read_token(model_url)) as plain:
            client = recorder.wrap(plain, hide_injected=False)
            for group in range(GROUPS):
                attempts = (play(client, recorder, f"g{group}", attempt) for attempt in range(ATTEMPTS))
                await asyncio.gather(*attempts)
        if not await asyncio.to_thread(recorder.flush, 30.0):
            raise SystemExit("not every event reached the broker")
    finally:
        await asyncio.to_thread(recorder.close)


async def measure(model_url: str) -> float:
    """Return how much users would like what is served now, on questions that nobody trained on."""
    async with AsyncOpenAI(base_url=model_url, api_key=rollbus.read_token(model_url)) as client:
        requests = (
            client.chat.completions.create(
                model=MODEL,
                messages=[{"role": "user", "content": f"choose a letter h{number}"}],
                max_tokens=8,
                seed=number,
                extra_body={"return_token_ids": True},
            )
            for number in range(HELD_OUT)
        )
        answers: list[Any] = await asyncio.gather(*requests)
    return sum(liked(answer.choices[0].token_ids) for answer in answers) / HELD_OUT


def liked(tokens: list[int]) -> float:
    """Return the share of even tokens."""
    return sum(token % 2 == 0 for token in tokens) / len(tokens)


if __name__ == "__main__":
    if sys.argv[1] == "play":
        asyncio.run(play_all(*sys.argv[2:5]))
    else:
        print(f"{asyncio.run(measure(sys.argv[2])):.4f}")
