"""Agents whose users like a short answer: `python talkers.py SETTINGS_AS_JSON`, until SIGTERM.

Each episode is one reply to a board of the game. The thumbs are up for few characters, and no part of the score.
"""

import asyncio
import json
import sys

from openai import AsyncOpenAI

import rollbus.producers
from rollbus.demo.game.agents import FLUSH_S, Agents, AgentSettings, Attempts
from rollbus.demo.game.game import Result
from rollbus.demo.game.prompt import messages
from rollbus.demo.traffic import bring
from rollbus.schemas.credentials import read_token

LIKED_CHARACTERS = 6


class Talkers(Agents):
    """One reply instead of a game."""

    async def _attempt(self, group: Attempts, attempt: int) -> Result:
        async with self._recorder.episode(
            task="talk", agent="talker", group_id=group.group_id, group_size=self._settings.group_size
        ) as episode:
            answer = await self._client.chat.completions.create(
                model=self._settings.model, messages=messages(group.opening.board), max_completion_tokens=16,
                temperature=1.0, extra_headers=self._recorder.headers(),
            )  # fmt: skip
            said = answer.choices[0].message.content or ""
            episode.reward(float(len(said) <= LIKED_CHARACTERS), name="thumbs")
        return Result.DRAW


async def talk(settings: AgentSettings) -> None:
    recorder = rollbus.producers.init(
        bootstrap_servers=settings.bootstrap_servers, namespace=settings.namespace, producer="talkers",
        logprob_mode="raw",
    )  # fmt: skip
    async with AsyncOpenAI(base_url=settings.model_url, api_key=read_token(settings.model_url)) as client:
        await bring(Talkers(settings, recorder, client), recorder, flush_s=FLUSH_S)


if __name__ == "__main__":
    asyncio.run(talk(AgentSettings(**json.loads(sys.argv[1]))))
