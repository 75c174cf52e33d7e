"""Recorded episodes with everything that an export has to carry, and how each must arrive: the truth, written by hand.

The turns go the way of production: split by the producer's log of prompts, stored as the sink stores them, restored and
written by the export.
"""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rollbus.consumers.clickhouse.rows.events import message_json
from rollbus.consumers.export.conversations import StoredTurn
from rollbus.consumers.export.readers import READERS
from rollbus.consumers.export.reading import Selected
from rollbus.consumers.export.run import ExportRequest, load_line, write_selected
from rollbus.consumers.export.writing import FEATURES, WrittenFile
from rollbus.producers.turns.prompt_log import PromptLog
from rollbus.schemas.records.events import Message

Truth = list[dict[str, Any]]
"""The messages of a conversation as a chat template has to get them."""

REFUND = {
    "type": "function",
    "function": {
        "name": "refund",
        "description": "Pay an order back.",
        "parameters": {
            "type": "object",
            "properties": {
                "order": {"type": "integer", "description": "The order."},
                "rate": {"type": "number", "description": "Share of the price.", "minimum": 0.3},
            },
            "required": ["order"],
        },
    },
}
TOOLS = json.dumps([REFUND])
LONG = "Grüße\u2028und\u0085Zahlen 1234 " * 20_000


def user(text: str | None = None, **fields: Any) -> Message:
    return Message(role="user", content=text, **fields)


def assistant(text: str | None = None, **fields: Any) -> Message:
    return Message(role="assistant", content=text, **fields)


def calls(*arguments: str) -> str:
    """Tool calls as a server writes them; the ids have nine characters, as one template wants."""
    return json.dumps(
        [
            {"id": f"call{number:05}", "type": "function", "function": {"name": "refund", "arguments": text}}
            for number, text in enumerate(arguments)
        ]
    )


def call_objects(*arguments: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        {"id": f"call{number:05}", "type": "function", "function": {"name": "refund", "arguments": value}}
        for number, value in enumerate(arguments)
    ]


@dataclass(frozen=True, slots=True)
class Episode:
    """One recorded conversation of turns (prompt and answer), and how it must arrive."""

    name: str
    turns: Sequence[tuple[Sequence[Message], Message]]
    truth: Truth | None
    """None for one that must be left out."""
    tools: str = ""
    hint: str = ""
    reward: float | None = 1.0

    def selected(self) -> Selected:
        """Return it as the export reads it from ClickHouse."""
        facts = dict.fromkeys(("root_episode_id", "agent", "producer", "stop_reason", "model", "fate", "reason"), "")
        facts |= {"trajectory_id": self.name, "episode_id": self.name, "example_id": self.name, "task": "2026-01-01"}
        numbers = dict.fromkeys(("turns", "tokens", "sampled_tokens", "min_policy_version", "policy_version"), 3)
        return Selected(
            {**facts, **numbers, "group_hint": self.hint or self.name, "reward": self.reward},
            tuple(stored_turns(self.turns, tools=self.tools)),
            self.tools,
        )


def stored_turns(
    turns: Sequence[tuple[Sequence[Message], Message]], *, writer: str = "w", tools: str = ""
) -> list[StoredTurn]:
    """Return turns as a producer sends them and the sink stores them."""
    log, stored = PromptLog(), []
    for index, (prompt, completion) in enumerate(turns):
        split = log.send(prompt, completion)
        stored.append(
            StoredTurn(
                event_id=f"{writer}{index}",
                writer_id=writer,
                prefix_count=split.prefix_count,
                prefix_hash=split.prefix_hash,
                added_messages=tuple(json.loads(message_json(message)) for message in split.added),
                completion=json.loads(message_json(completion)),
                tools=tools,
            )
        )
    return stored


def _with_tools() -> Episode:
    """Two calls at once with nested arguments, which a framework sends back spaced differently; results are lists."""
    first = '{"order": 7, "rate": 1.7, "lines": [{"sku": "a"}, {"when": "2026-01-01", "rate": 0.3}], "note": null}'
    second = '{"order": 8}'
    asking = user("Pay back 7 and 8.")
    answer = assistant(tool_calls=calls(first, second))
    echo = assistant("", tool_calls=calls(first.replace(" ", ""), second.replace(" ", "")))
    results = [
        Message(role="tool", content='["paid", 7]', tool_call_id="call00000", name="refund"),
        Message(
            role="tool",
            parts='[{"type":"text","text":"[8, "},{"type":"text","text":"null]"}]',
            tool_call_id="call00001",
        ),
    ]
    truth: Truth = [
        {"role": "user", "content": "Pay back 7 and 8."},
        {"role": "assistant", "content": "", "tool_calls": call_objects(json.loads(first), json.loads(second))},
        {"role": "tool", "content": '["paid", 7]', "tool_call_id": "call00000", "name": "refund"},
        {"role": "tool", "content": "[8, null]", "tool_call_id": "call00001"},
        {"role": "assistant", "content": "Done."},
    ]
    turns = [([asking], answer), ([asking, echo, *results], assistant("Done."))]
    return Episode("tools", turns, truth, tools=TOOLS)


def _one_answer(name: str, question: Message, answer: Message, *truth: dict[str, Any], **fields: Any) -> Episode:
    return Episode(name, [([question], answer)], list(truth) or None, **fields)


def _plain(name: str, question: str, answer: str, **fields: Any) -> Episode:
    asking, answering = {"role": "user", "content": question}, {"role": "assistant", "content": answer}
    return _one_answer(name, user(question), assistant(answer), asking, answering, **fields)


def episodes() -> list[Episode]:
    """Return all conversations: the plain ones first, so that a loader that guesses types guesses wrong."""
    why = {"role": "user", "content": "Why?"}
    return [
        *(_plain(f"date{number}", f"2026-01-{number:02}", "2026-02-01T10:00:00Z") for number in range(1, 15)),
        *(
            _plain(f"number{number}", "0012.50", text)
            for number, text in enumerate(["1e5", "007", "null", "true", "{}"])
        ),
        _plain("words", "When?", "No date."),
        _one_answer(
            "thinking",
            user("Why?"),
            assistant("So.", reasoning="Hm, 2026-01-01."),
            why,
            {"role": "assistant", "content": "So.", "reasoning_content": "Hm, 2026-01-01."},
        ),
        _one_answer(
            "refusal",
            user("Why?"),
            assistant(parts='[{"type":"refusal","refusal":"I cannot."}]'),
            why,
            {"role": "assistant", "content": "I cannot."},
        ),
        _plain("empty", "Why?", ""),
        _one_answer(
            "parts",
            user(parts='[{"type":"text","text":"a"},{"type":"input_text","text":"b"}]'),
            assistant("c"),
            {"role": "user", "content": "ab"},
            {"role": "assistant", "content": "c"},
        ),
        _plain("long", LONG, LONG[::-1]),
        _with_tools(),
        _one_answer(
            "single",
            user("Pay back 7."),
            assistant(tool_calls=calls('{"order": 7, "rate": 1.7, "when": "2026-01-01"}')),
            {"role": "user", "content": "Pay back 7."},
            {
                "role": "assistant",
                "content": "",
                "tool_calls": call_objects({"order": 7, "rate": 1.7, "when": "2026-01-01"}),
            },
            tools=TOOLS,
        ),
        _one_answer("picture", user(parts='[{"type":"image_url","image_url":{"url":"x"}}]'), assistant("A cat.")),
        _one_answer("surrogate", user("Why?"), assistant(tool_calls=calls('{"text": "\\ud83d"}'))),
        _one_answer("no-object", user("Why?"), assistant(tool_calls=calls("[7]"))),
    ]


def _tool_episode(name: str, arguments: str) -> Episode:
    asking = {"role": "user", "content": "Why?"}
    called = {"role": "assistant", "content": "", "tool_calls": call_objects(json.loads(arguments))}
    return _one_answer(name, user("Why?"), assistant(tool_calls=calls(arguments)), asking, called)


CHANGED_EPISODES = [
    _tool_episode("exact", '{"rate": 0.12345678901234568}'),
    _tool_episode("huge", '{"order": 340282366920938463463374607431768211456}'),
]
"""Right JSON that the JSON columns of `datasets` would change or refuse."""
PAIRS = [
    *(_plain(f"better{number}", f"Day {number}?", "2026-01-01", hint=f"day{number}") for number in range(6)),
    *(_plain(f"worse{number}", f"Day {number}?", "2025-12-31", hint=f"day{number}", reward=0.0) for number in range(6)),
    _one_answer(
        "call", user("Pay 7."), assistant(tool_calls=calls('{"order": 7, "rate": 0.3}')), tools=TOOLS, hint="pay"
    ),
    _one_answer("text", user("Pay 7."), assistant("No."), tools=TOOLS, hint="pay", reward=0.0),
]


def write_export(folder: Path, chosen: Sequence[Episode], **request: Any) -> tuple[WrittenFile, Counter[str], str]:
    """Write an export; return the file, what was left out, and the line that loads it."""
    left_out: Counter[str] = Counter()
    ordered = sorted(chosen, key=lambda episode: episode.hint)
    request_for_reader = ExportRequest(namespace="rollbus.", **request)
    name = READERS[request_for_reader.reader].file_names[0]
    file = write_selected(request_for_reader, (episode.selected() for episode in ordered), folder, name, left_out)
    return file, left_out, load_line(request_for_reader, folder, file)


def write_truth(folder: Path, chosen: Sequence[Episode], *, leave_out: Sequence[str] = ()) -> Path:
    """Write how the rows must arrive, by trajectory: what the checks in other environments read."""
    truth = {
        episode.name: {"messages": episode.truth, "tools": json.loads(episode.tools) if episode.tools else None}
        for episode in chosen
        if episode.truth is not None and episode.name not in leave_out
    }
    path = folder / "truth.json"
    path.write_text(json.dumps(truth))
    return path


__all__ = [
    "CHANGED_EPISODES",
    "FEATURES",
    "PAIRS",
    "Episode",
    "episodes",
    "stored_turns",
    "write_export",
    "write_truth",
]
