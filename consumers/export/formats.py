"""Conversations and preference pairs → the rows that a reader takes. Pure.

| reader | sft | dpo | evaluation |
|---|---|---|---|
| `hf`, `trl` | messages; or prompt, completion | prompt, chosen, rejected | id, task, prompt, reference, attempts |
| `axolotl` | messages | messages, chosen, rejected | – |
| `verl` | messages | – | data_source, prompt, ability, reward_model, extra_info |
| `nemo` | messages | prompt, chosen_response, rejected_response | – |
| `openai` | messages | input, preferred_output, non_preferred_output | – |

Each has `tools` if some were offered, and the first three have the facts of the trajectory.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from rollbus.consumers.export.forms import ChatMessage, for_templates, tool_schemas
from rollbus.consumers.export.numbers import UnfitRowError
from rollbus.consumers.export.preferences import Candidate, PreferencePair
from rollbus.consumers.export.readers import READERS, ReaderName

Row = dict[str, Any]


def conversation_row(name: ReaderName, messages: Sequence[ChatMessage], *, tools: str = "", **facts: Any) -> Row:
    """Return a whole conversation; trainers learn every message of the assistant."""
    reader = READERS[name]
    schemas = tool_schemas(tools)
    if name == "verl" and schemas:
        raise UnfitRowError("with tools, whose schemas verl's SFT reads with a null for each field that one lacks")
    offer = {"tools": tools} if schemas and name == "axolotl" else _tools(schemas)  # of a list, it drops what is null
    return {"messages": reader.form(messages), **offer, **(facts if reader.has_facts else {})}


def completion_row(candidate: Candidate) -> Row:
    """Return one answer and its prompt; trainers learn only the answer."""
    return {
        "prompt": for_templates(candidate.prompt),
        "completion": for_templates([candidate.completion]),
        **_tools(tool_schemas(candidate.tools)),
        **candidate.facts,
    }


def evaluation_row(
    name: ReaderName,
    prompt: Sequence[ChatMessage],
    answer: ChatMessage,
    *,
    attempts: int,
    facts: Mapping[str, Any],
    tools: str = "",
) -> Row:
    """Return one problem: its prompt, the answer with the highest reward so far, and how often it was tried."""
    identity = facts["example_id"] or facts["trajectory_id"]
    (reference,) = for_templates([answer])
    if name == "verl":
        return {
            "data_source": facts["task"],
            "prompt": for_templates(prompt),
            "ability": facts["task"],
            "reward_model": {"style": "rule", "ground_truth": reference["content"]},
            "extra_info": {"index": identity, "reference_reward": facts["reward"], "attempts": attempts},
        }
    return {
        "id": identity,
        "task": facts["task"],
        "prompt": for_templates(prompt),
        **_tools(tool_schemas(tools)),
        "reference": reference,
        "reference_reward": facts["reward"],
        "attempts": attempts,
    }


def preference_row(name: ReaderName, pair: PreferencePair) -> Row:
    """Return a pair of answers to one prompt."""
    form, schemas = READERS[name].pair_form, tool_schemas(pair.chosen.tools)
    prompt, chosen, rejected = form(pair.prompt), form([pair.chosen.completion]), form([pair.rejected.completion])
    if name == "nemo":
        _refuse_tools(schemas, "NeMo Customizer")
        return {
            "prompt": prompt,
            "chosen_response": chosen[0]["content"],
            "rejected_response": rejected[0]["content"],
        }
    if name == "openai":
        return {
            "input": {"messages": prompt, **_tools(schemas)},
            "preferred_output": chosen,
            "non_preferred_output": rejected,
        }
    if name == "axolotl":
        _refuse_tools(schemas, "Axolotl's DPO")
    return {
        "messages" if name == "axolotl" else "prompt": prompt,
        "chosen": chosen,
        "rejected": rejected,
        **_tools(schemas),
        "chosen_score": pair.chosen.score,
        "rejected_score": pair.rejected.score,
        "chosen_id": pair.chosen.id,
        "rejected_id": pair.rejected.id,
    }


def _refuse_tools(schemas: list[Any] | None, reader: str) -> None:
    if schemas:
        raise UnfitRowError(f"with tools, which {reader} does not show to the template")


def _tools(schemas: list[Any] | None) -> Row:
    return {"tools": schemas} if schemas else {}
