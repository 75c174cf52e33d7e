"""Answers that a workflow considered at a turn, each with its score: said inside the episode, read from its steps.

`score_candidate` records a tool call of the name `ttc_step_name`, so candidates go wherever the episode goes.
"""

import json
from collections.abc import Iterable, Sequence
from typing import Any

from rollbus.consumers.export.preferences import Candidate
from rollbus.harness.evaluation_models import IntermediateStep
from rollbus.producers.episode import context

STEP_NAME = "dpo_candidate_move"


def score_candidate(
    turn_id: str,
    prompt: Sequence[dict[str, Any]] | str,
    response: str,
    score: float,
    *,
    step_name: str = STEP_NAME,
) -> None:
    """Record that `response` was considered at a turn of the running episode, and how good it was found."""
    episode = context.current_episode()
    if episode is None:
        return
    messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else list(prompt)
    arguments = {"turn_id": turn_id, "prompt": messages, "response": response}
    episode.tool(step_name, arguments=arguments, result={"score": float(score)})


def candidates_by_turn(steps: Iterable[IntermediateStep], step_name: str) -> dict[str, list[Candidate]]:
    """Return the candidates of an episode's steps, turn by turn."""
    turns: dict[str, list[Candidate]] = {}
    for step in steps:
        if step.event_type != "TOOL_END" or step.name != step_name:
            continue
        told, result = json.loads(step.input), json.loads(step.output)
        found = turns.setdefault(str(told["turn_id"]), [])
        found.append(
            Candidate(
                id=f"{len(found):06d}",
                prompt=tuple(told["prompt"]),
                completion={"role": "assistant", "content": told["response"]},
                score=float(result["score"]),
            )
        )
    return turns
