"""LangSmith's runs and feedback to events."""

import json
from typing import Any

from tests.producers.imports.formats.reading import Read


def run(key: str, kind: str, start: str, end: str, **fields: Any) -> dict[str, Any]:
    times = {"start_time": f"2026-03-01T10:00:{start}", "end_time": f"2026-03-01T10:00:{end}"}
    return {"id": key, "name": key, "run_type": kind, "trace_id": "r0", "dotted_order": "x", **times, **fields}


HUMAN = {"lc": 1, "type": "constructor", "id": ["langchain", "schema", "messages", "HumanMessage"],
         "kwargs": {"content": "2+2?", "type": "human"}}  # fmt: skip
SAID = {
    "lc": 1,
    "type": "constructor",
    "id": ["langchain", "schema", "messages", "AIMessage"],
    "kwargs": {
        "content": "",
        "tool_calls": [{"name": "add", "args": {"a": 2, "b": 2}, "id": "c1", "type": "tool_call"}],
        "type": "ai",
    },
}
GENERATIONS = {
    "generations": [[{"text": "", "message": SAID, "generation_info": {"finish_reason": "tool_calls"}}]],
    "llm_output": {"model_name": "gpt-4o", "token_usage": {"prompt_tokens": 9, "completion_tokens": 4}},
}
META = {"metadata": {"thread_id": "s-1", "user_id": "ann", "ls_model_name": "gpt-4o", "tier": "gold"}}
RUNS = [
    run("r0", "chain", "00", "09", inputs={"input": "2+2?"}, outputs={"output": "4"}, extra=META, tags=["beta"],
        feedback_stats={"correct": {"n": 1, "avg": 1.0}, "style": {"n": 2, "avg": 0.5}}),
    run("r1", "llm", "01", "02", parent_run_id="r0", inputs={"messages": [[HUMAN]]}, outputs=GENERATIONS,
        extra={"invocation_params": {"model": "gpt-4o", "temperature": 0.1}, **META}),
    run("r2", "tool", "03", "04", parent_run_id="r0", inputs={"input": "{'a': 2}"}, outputs={"output": "4"}),
    run("r3", "llm", "05", "06", parent_run_id="r0", inputs={"messages": [{"type": "human", "content": "2+2?"}]},
        outputs={"messages": [{"role": "assistant", "content": "4"}]}),
]  # fmt: skip
FEEDBACK = {"id": "f1", "run_id": "r0", "trace_id": "r0", "key": "correct", "score": True, "comment": "yes",
            "feedback_source": {"type": "app"}, "created_at": "2026-03-02T08:00:00"}  # fmt: skip


def test_runs_become_an_episode_with_turns_tools_and_labels() -> None:
    episode = Read("langsmith", RUNS)
    first, last = episode.turns
    assert [added_message.content for added_message in first.added_messages] == ["2+2?"]
    assert json.loads(first.completion.tool_calls or "")[0]["function"] == {"name": "add", "arguments": '{"a":2,"b":2}'}
    assert (first.model, first.finish_reason, first.prompt_tokens, first.temperature) == (
        "gpt-4o",
        "tool_calls",
        9,
        0.1,
    )
    assert (last.completion.content, last.untrainable_reason) == ("4", "no_token_ids")
    assert [(tool.name, tool.result) for tool in episode.tools] == [("r2", "4")]
    labels = episode.started.labels
    assert (labels["session"], labels["user"], labels["tier"], labels["tags"]) == ("s-1", "ann", "gold", "beta")
    assert episode.started.occurred_at_ms == 1_772_359_200_000


def test_feedback_counts_in_place_of_its_statistics() -> None:
    correct, style = sorted(Read("langsmith", [*RUNS, FEEDBACK]).rewards, key=lambda reward: reward.name)
    assert (correct.value, correct.source, correct.comment) == (1.0, "app", "yes")
    assert (style.name, style.value) == ("style", 0.5)


def test_feedback_alone_is_feedback_on_the_same_episode() -> None:
    (reward,) = Read("langsmith", [FEEDBACK]).rewards
    assert reward.episode_id == Read("langsmith", RUNS).started.episode_id


def test_a_run_that_failed_says_so() -> None:
    failed = {**RUNS[1], "outputs": None, "error": "RateLimitError", "parent_run_id": None, "id": "r0"}
    episode = Read("langsmith", [failed])
    assert (episode.turns[0].untrainable_reason, episode.ended.stop_reason) == ("failed_call", "error")


def test_what_is_null_is_neither_the_name_of_a_score_nor_a_tag() -> None:
    runs = [run("a", "chain", "00", "01", tags=["x", None, "y"])]
    nameless = {"id": "f", "run_id": "a", "trace_id": "a", "key": None, "score": 1.0}
    episode = Read("langsmith", [*runs, nameless])
    assert episode.started.labels["tags"] == "x,y"
    assert episode.rewards == []
    assert episode.unmapped["langsmith.feedback without a key"] == 1
