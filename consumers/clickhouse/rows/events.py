"""Events → `events` (every kind), and one typed table for each kind that carries more than the envelope."""

import dataclasses
import json

from rollbus.consumers.clickhouse.store.fills import Fill, Time, columns_of, fields
from rollbus.schemas.errors import InvalidRecordError
from rollbus.schemas.ids import canonical_json
from rollbus.schemas.records.events import (
    AliasDeclared,
    EpisodeEnded,
    EpisodeStarted,
    Event,
    Excluded,
    Message,
    RewardReported,
    ToolCalled,
    TurnRecorded,
    WriterClosed,
)
from rollbus.schemas.records.tokens import BYTES_PER_TOKEN

_MESSAGE_FIELDS = tuple(sorted(field.name for field in dataclasses.fields(Message)))
_DETAILS: dict[type, tuple[str, ...]] = {
    WriterClosed: ("count", "partial", "paused"),
    Excluded: ("reason",),
    AliasDeclared: ("alias", "conversation"),
}
"""The fields beyond the envelope, of the kinds without a table of their own; empty lists are left out."""
_TOKENS = ("prompt_token_ids", "completion_token_ids", "logprobs")
_ENVELOPE = ("root_episode_id", "producer", "environment")
"""Fields that only `events` and `episodes` repeat."""
_SEQUENCE = ("writer_id", "sequence")
_quote = json.encoder.encode_basestring


def message_json(message: Message) -> str:
    """Return a message's canonical JSON without the fields that it lacks; every field of a message is text."""
    content = message.content
    plain = message.name is message.parts is message.reasoning is message.tool_calls is message.tool_call_id is None
    if plain and content is not None:  # as most messages are
        return f'{{"content":{_quote(content)},"role":{_quote(message.role)}}}'
    pairs = [f'"{name}":{_quote(value)}' for name in _MESSAGE_FIELDS if (value := getattr(message, name)) is not None]
    return f"{{{','.join(pairs)}}}"


def _messages_json(event: TurnRecorded) -> str:
    return f"[{','.join(map(message_json, event.added_messages))}]"


def _detail(event: Event) -> str:
    names = _DETAILS.get(type(event), ())
    values = {name: value for name in names if (value := getattr(event, name)) != ()}
    return canonical_json(values) if names else ""


EVENTS = Fill("events", {**columns_of(Event), "kind": lambda event: type(event).__name__, "detail": _detail})
EPISODES = Fill(
    "episodes",
    {
        **columns_of(EpisodeStarted, leave_out=(*_SEQUENCE, "occurred_at_ms", "episode_started_at_ms")),
        "started_at": Time("episode_started_at_ms"),
    },
)
TURNS = Fill(
    "turns",
    {
        **columns_of(TurnRecorded, leave_out=(*_ENVELOPE, *_TOKENS)),
        "added_messages": _messages_json,
        "completion": lambda event: message_json(event.completion),
        "completion_text": lambda event: event.completion.content,
    },
)
TURN_TOKENS = Fill(
    "turn_tokens",
    {
        **fields("episode_id", "event_id"),
        "prompt_token_ids": lambda event: event.prompt_token_ids or b"",
        "completion_token_ids": lambda event: event.completion_token_ids or b"",
        "logprobs": lambda event: event.logprobs or b"",
        "episode_started_at": Time("episode_started_at_ms"),
    },
)
TOOL_CALLS = Fill("tool_calls", columns_of(ToolCalled, leave_out=_ENVELOPE))
REWARDS = Fill("rewards", columns_of(RewardReported, leave_out=(*_ENVELOPE, *_SEQUENCE)))
EPISODE_ENDS = Fill(
    "episode_ends",
    {
        **columns_of(EpisodeEnded, leave_out=(*_ENVELOPE, *_SEQUENCE, "occurred_at_ms")),
        "ended_at": Time("occurred_at_ms"),
    },
)


def has_tokens(event: TurnRecorded) -> bool:
    """Say whether a turn has tokens; raises InvalidRecordError for tokens that cannot be read."""
    tokens = [data for name in _TOKENS if (data := getattr(event, name))]
    for data in tokens:
        if len(data) % BYTES_PER_TOKEN:
            raise InvalidRecordError(f"turn {event.event_id}: {len(data)} bytes of tokens are not whole numbers")
    return bool(tokens)
