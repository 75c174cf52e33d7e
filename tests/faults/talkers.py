"""Programs whose users like a short answer: `python talkers.py SETTINGS_AS_JSON`, until SIGTERM.

Each episode is one reply to a board of the game. The thumbs are up for few characters, and no part of the score. They
know nothing of rollbus but the proxy's address. What fails is left to the next episode.
"""

import asyncio
import json
import signal
import sys

import httpx

from rollbus.demo.game.agents import AgentSettings, Attempts, attempts
from rollbus.demo.game.prompt import messages

LIKED_CHARACTERS = 6
PAUSE_AFTER_FAILURE_S = 0.5


async def talk(proxy: httpx.AsyncClient, settings: AgentSettings, group: Attempts) -> None:
    """Open an episode, ask, rate the answer."""
    labels = {"task": "talk", "agent": "talker", "group_id": group.group_id, "group_size": settings.group_size}
    opened = (await proxy.post("/rollbus/episodes", json=labels)).raise_for_status().json()
    chat_request = {"model": settings.model, "messages": messages(group.opening.board), "max_completion_tokens": 16,
             "temperature": 1.0}  # fmt: skip
    answer = (await proxy.post(f"{opened['base_url']}/chat/completions", json=chat_request)).raise_for_status().json()
    answer_text = answer["choices"][0]["message"]["content"] or ""
    thumbs = {"name": "thumbs", "value": float(len(answer_text) <= LIKED_CHARACTERS)}
    episode = f"/rollbus/episodes/{opened['id']}"
    (await proxy.post(f"{episode}/reward", json=thumbs)).raise_for_status()
    (await proxy.post(f"{episode}/end", json={})).raise_for_status()


async def talk_on(settings: AgentSettings) -> None:
    """Let so many talk at once, at a steady rate, until SIGTERM."""
    stopping, places = asyncio.Event(), asyncio.Semaphore(settings.games_at_once)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopping.set)
    async with httpx.AsyncClient(base_url=settings.model_url.removesuffix("/v1"), timeout=60) as proxy:

        async def attempt(group: Attempts) -> None:
            try:
                await talk(proxy, settings, group)
            except httpx.HTTPError:  # the proxy was killed, or the server behind it
                await asyncio.sleep(PAUSE_AFTER_FAILURE_S)
            finally:
                places.release()

        async with asyncio.TaskGroup() as talking:
            for group in attempts(settings.seed):
                for _ in range(settings.group_size):
                    await places.acquire()
                    talking.create_task(attempt(group))
                await asyncio.sleep(settings.group_size / settings.episodes_per_s)
                if stopping.is_set():
                    break


if __name__ == "__main__":
    asyncio.run(talk_on(AgentSettings(**json.loads(sys.argv[1]))))
