"""The events that every variant works on: episodes of four turns of 200 tokens and 2 kB of text, a reward, an end."""

import random
from dataclasses import dataclass
from typing import Any

from rollbus.schemas.codec import decode, encode
from rollbus.schemas.ids import event_id
from rollbus.schemas.records.config import AssemblyConfig
from rollbus.schemas.records.events import (
    EpisodeEnded,
    EpisodeStarted,
    Message,
    RewardReported,
    TurnRecorded,
    WriterClosed,
)
from rollbus.schemas.records.tokens import encode_logprobs, encode_token_ids
from rollbus.schemas.records.trajectories import Location
from rollbus.streams.stages.assembly.stage import AssemblyStage
from rollbus.streams.state.stage import Incoming

TURNS = 4
EVENTS = TURNS + 4
"""Of an episode."""
TOKENS = 200
TEXT = "The quick brown fox considers its next move with care. " * 37
NOWHERE = Location(topic="", partition=0, offset=0)


@dataclass(frozen=True, slots=True)
class Shape:
    """How long an episode is."""

    turns: int = TURNS
    prompt_tokens: int = 50
    tokens: int = TOKENS
    """Sampled in each turn."""
    text: str = TEXT

    @property
    def events(self) -> int:
        """A start, its turns, a reward, an end, a writer's close."""
        return self.turns + EVENTS - TURNS


LONG = Shape()


def episode(
    number: int,
    chance: random.Random,
    *,
    group_id: str | None = None,
    group_size: int | None = None,
    reward: float = 1.0,
    shape: Shape = LONG,
) -> list[bytes]:
    """Return the events of one episode, encoded; members of one group share their first prompt."""
    name, tokens = f"episode-{number}", [chance.randrange(150_000) for _ in range(shape.tokens)]
    events: list[bytes] = []

    def envelope() -> dict[str, Any]:
        sequence = len(events)
        ids: dict[str, Any] = {"episode_id": name, "root_episode_id": name, "writer_id": "w", "sequence": sequence}
        times = {"occurred_at_ms": sequence, "episode_started_at_ms": 0}
        return {"event_id": event_id(name, "w", sequence), **ids, **times}

    group: dict[str, Any] = {"group_id": group_id, "group_size": group_size}
    events.append(encode(EpisodeStarted(**envelope(), task="bench", example_id=str(number // 8), **group)))
    prompt = list(range(shape.prompt_tokens))
    for _ in range(shape.turns):
        turn = TurnRecorded(
            **envelope(),
            model="agent@0",
            policy_version=0,
            added_messages=(Message(role="user", content=shape.text),),
            completion=Message(role="assistant", content="7"),
            prompt_token_ids=encode_token_ids(prompt),
            completion_token_ids=encode_token_ids(tokens),
            logprobs=encode_logprobs([-0.5] * shape.tokens),
            finish_reason="stop",
            temperature=1.0,
            trainable=True,
        )
        events.append(encode(turn))
        prompt = [*prompt, *tokens, *tokens[:10]]
    events.append(encode(RewardReported(**envelope(), value=reward)))
    events.append(encode(EpisodeEnded(**envelope(), writer_ids=("w",))))
    events.append(encode(WriterClosed(**envelope(), count=len(events))))
    return events


def warm_up() -> None:
    """Assemble one episode, so that what codecs cost once in a process's life is not measured."""
    state, stage = AssemblyStage(AssemblyConfig()).new_state(), AssemblyStage(AssemblyConfig())
    for event in episode(0, random.Random(0)):
        for outgoing in stage.step(state, Incoming(decode(event), "", NOWHERE, event)):
            encode(outgoing.record)
