"""Events → `events` (every kind), and one typed table for each kind that carries more than the envelope.

Most records of a log are events, so their tables are filled column by column.
"""

import dataclasses
import json

from rollbus.consumers.clickhouse.fills import Column, Fill, Time, same
from rollbus.consumers.clickhouse.origin import Origin, Rows
from rollbus.schemas.errors import InvalidRecordError
from rollbus.schemas.events import (
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
from rollbus.schemas.ids import canonical_json
from rollbus.schemas.tokens import BYTES_PER_TOKEN

_MESSAGE_FIELDS = tuple(sorted(field.name for field in dataclasses.fields(Message)))
_quoted = json.encoder.encode_basestring


def message_json(message: Message) -> str:
    """Return a message's canonical JSON without what it lacks; every field of a message is text."""
    content = message.content
    plain = message.name is message.parts is message.reasoning is message.tool_calls is message.tool_call_id is None
    if plain and content is not None:  # as most messages are
        return f'{{"content":{_quoted(content)},"role":{_quoted(message.role)}}}'
    said = [f'"{name}":{_quoted(value)}' for name in _MESSAGE_FIELDS if (value := getattr(message, name)) is not None]
    return f"{{{','.join(said)}}}"


def _messages_json(event: TurnRecorded) -> str:
    messages = event.added_messages
    if len(messages) == 1:  # as in most turns
        return f"[{message_json(messages[0])}]"
    return f"[{','.join(map(message_json, messages))}]"


def _detail(event: Event) -> str:
    told = _DETAILS.get(type(event))
    return canonical_json({told: getattr(event, told)}) if told is not None else ""


_DETAILS: dict[type, str] = {WriterClosed: "count", Excluded: "reason", AliasDeclared: "alias"}
"""What stands as JSON beside the envelope, of the kinds without a table of their own."""


_occurred, _episode_started = Time("occurred_at_ms"), Time("episode_started_at_ms")
_ID = same("episode_id", "event_id")
_TIMES: dict[str, Column] = {"occurred_at": _occurred, "episode_started_at": _episode_started}

EVENTS = Fill(
    "events",
    {
        **_ID,
        "kind": lambda event: type(event).__name__,
        **same("root_episode_id", "writer_id", "sequence", "producer", "environment"),
        "detail": _detail,
        **_TIMES,
    },
)
EPISODES = Fill(
    "episodes",
    {
        **_ID,
        **same("root_episode_id", "parent_episode_id", "task", "agent", "example_id", "group_id", "group_size"),
        "labels": lambda event: dict(event.labels),
        **same("resampled", "producer", "environment"),
        "started_at": _episode_started,
    },
)
TURNS = Fill(
    "turns",
    {
        **_ID,
        **same(
            "writer_id",
            "sequence",
            "function",
            "model",
            "policy_version",
            "response_id",
            "choice",
            "prefix_count",
            "prefix_hash",
            "logprob_mode",
            "temperature",
            "top_p",
            "top_k",
            "min_p",
            "frequency_penalty",
            "presence_penalty",
            "repetition_penalty",
            "seed",
            "max_tokens",
            "finish_reason",
            "tools_hash",
            "tools",
            "prompt_tokens",
            "completion_tokens",
            "latency_ms",
            "streamed",
            "trainable",
            "untrainable_reason",
        ),
        "added_messages": _messages_json,
        "completion": lambda event: message_json(event.completion),
        "completion_text": lambda event: event.completion.content,
        **_TIMES,
    },
)
TURN_TOKENS = Fill(
    "turn_tokens",
    {
        **_ID,
        "prompt_token_ids": lambda event: event.prompt_token_ids or b"",
        "completion_token_ids": lambda event: event.completion_token_ids or b"",
        "logprobs": lambda event: event.logprobs or b"",
        "episode_started_at": _episode_started,
    },
)
TOOL_CALLS = Fill(
    "tool_calls",
    {
        **_ID,
        **same("writer_id", "sequence", "name", "tool_call_id", "arguments", "result", "error", "latency_ms"),
        **_TIMES,
    },
)
REWARDS = Fill(
    "rewards",
    {
        **_ID,
        **same("name", "value", "alias", "turn_event_id", "source", "supersedes", "retracted", "comment"),
        **_TIMES,
    },
)
EPISODE_ENDS = Fill(
    "episode_ends",
    {
        **_ID,
        **same("stop_reason", "error"),
        "writer_ids": lambda event: list(event.writer_ids),
        "episode_started_at": _episode_started,
        "ended_at": _occurred,
    },
)

FILLS: dict[type, tuple[Fill, ...]] = {
    EpisodeStarted: (EVENTS, EPISODES),
    TurnRecorded: (EVENTS, TURNS),
    ToolCalled: (EVENTS, TOOL_CALLS),
    RewardReported: (EVENTS, REWARDS),
    EpisodeEnded: (EVENTS, EPISODE_ENDS),
    WriterClosed: (EVENTS,),
    Excluded: (EVENTS,),
    AliasDeclared: (EVENTS,),
}
_WITH_TOKENS = (*FILLS[TurnRecorded], TURN_TOKENS)


def fills_of(event: Event) -> tuple[Fill, ...]:
    """Return what an event fills; raises InvalidRecordError for tokens that cannot be read."""
    if type(event) is TurnRecorded and (event.prompt_token_ids or event.completion_token_ids or event.logprobs):
        for data in (event.prompt_token_ids, event.completion_token_ids, event.logprobs):
            if data is not None and len(data) % BYTES_PER_TOKEN:
                raise InvalidRecordError(f"turn {event.event_id}: {len(data)} bytes of tokens are not whole numbers")
        return _WITH_TOKENS
    return FILLS[type(event)]


def event_rows(event: Event, origin: Origin) -> Rows:
    """Return the event, and its row in the table of its kind where it has one."""
    return [(fill.table, fill.row(event, origin)) for fill in fills_of(event)]
