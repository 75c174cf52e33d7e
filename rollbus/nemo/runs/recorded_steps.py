"""The toolkit's steps of an attempt, with what the recorder has of it: whole log-probs, and more tools.

A model's answer and its turn are of one call where the model server gave them one id.
"""

import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import takewhile
from typing import Any

from nat.data_models.intermediate_step import (
    IntermediateStep,
    IntermediateStepPayload,
    IntermediateStepType,
)

from rollbus.nemo.bus.transcripts import logprobs_with_tokens
from rollbus.schemas.records.events import Event, ToolCalled, TurnRecorded
from rollbus.schemas.records.tokens import decode_logprobs, decode_token_ids

logger = logging.getLogger(__name__)


def with_recorded(steps: Sequence[IntermediateStep], events: Sequence[Event]) -> list[IntermediateStep]:
    """Return the toolkit's steps: model calls with their whole log-probs, and the tools that no callback reported.

    Of LangChain and LangGraph the toolkit reports tools; agents of LlamaIndex tell its callbacks nothing of them.
    """
    turns = [event for event in events if isinstance(event, TurnRecorded)]
    reported = {step.payload.name for step in steps if step.event_type is IntermediateStepType.TOOL_END}
    turn_by_step = turns_of_answers(steps, turns)
    whole_steps: list[IntermediateStep] = []
    for index, step in enumerate(steps):
        whole_steps.append(step)
        turn = turn_by_step.get(index)
        if turn is not None and step.payload.data is not None:
            step.payload.data.logprobs = logprobs_of(turn)  # type: ignore[attr-defined]  # where its parsers look
            after = takewhile(lambda event: isinstance(event, ToolCalled), events[events.index(turn) + 1 :])
            for call in after:
                if isinstance(call, ToolCalled) and call.name not in reported:
                    whole_steps += _tool_steps(call, step)
    return whole_steps


def turns_of_answers(steps: Sequence[IntermediateStep], turns: Sequence[TurnRecorded]) -> dict[int, TurnRecorded]:
    """Return the turn of each model's answer, by the step's index: that with the id of the answer.

    Where the id says nothing, as of a server that gives every answer the same, the text must fit one call alone.
    """
    turns = [turn for turn in turns if turn.choice == 0]  # the choice that frameworks go on with
    uses = Counter(turn.response_id for turn in turns)
    turn_by_id = {turn.response_id: turn for turn in turns if uses[turn.response_id] == 1}
    turn_by_id.pop(None, None)
    turn_by_step, texts = dict[int, TurnRecorded](), dict[int, str]()
    for index, step in enumerate(steps):
        if step.event_type is IntermediateStepType.LLM_END and step.payload.data is not None:
            if (turn := turn_by_id.get(_answer_id(step.payload.data.payload))) is not None:
                turn_by_step[index] = turn
            else:
                texts[index] = str(step.payload.data.output or "")
    ids = {turn.event_id for turn in turn_by_step.values()}
    turn_by_text, unclear = _pair_texts(texts, [turn for turn in turns if turn.event_id not in ids])
    for index in unclear:
        logger.warning(
            "model call %s gets no tokens: its answer %.40r fits more than one recorded call, and it has no "
            "id of its own; let the model server give every answer another `id`",
            *(steps[index].payload.UUID, texts[index]),
        )
    return turn_by_step | turn_by_text


def _answer_id(payload: Any) -> str | None:
    """Return the id that the model server gave an answer, from what LangChain or LlamaIndex keeps of it."""
    for *path, name in (("message", "response_metadata", "id"), ("raw", "id")):
        value = payload
        for key in path:
            value = value.get(key) if isinstance(value, Mapping) else None
        if isinstance(value, Mapping) and isinstance(value.get(name), str):
            return str(value[name])
    return None


def _pair_texts(texts: Mapping[int, str], turns: Sequence[TurnRecorded]) -> tuple[dict[int, TurnRecorded], list[int]]:
    """Return the turn of each answer whose text has one alone, and the answers that may be of several.

    An equal text goes before one that an answer begins with: frameworks add calls of tools to what was answered.
    """
    turn_by_step, unclear, texts = dict[int, TurnRecorded](), list[int](), dict(texts)
    for is_same in (str.__eq__, str.startswith):
        pairs = [
            (index, turn)
            for index, text in texts.items()
            for turn in turns
            if is_same(text, turn.completion.content or "")
        ]
        turns_of_step = Counter(index for index, _ in pairs)
        steps_of_turn = Counter(turn.event_id for _, turn in pairs)
        for index, turn in pairs:
            if turns_of_step[index] == steps_of_turn[turn.event_id] == 1:
                turn_by_step[index] = turn
            elif index in texts:
                unclear.append(index)
            texts.pop(index, None)
        turns = [turn for turn in turns if turn.event_id not in steps_of_turn]
    return turn_by_step, unclear


def _tool_steps(call: ToolCalled, model_step: IntermediateStep) -> Iterator[IntermediateStep]:
    """Yield the start and the end of a tool's run, as the framework's callbacks would have reported them."""
    end_s = call.occurred_at_ms / 1000
    begin_s = end_s - (call.latency_ms or 0) / 1000
    shared: dict[str, Any] = {"name": call.name, "framework": model_step.payload.framework, "UUID": call.event_id}
    at_start = {"event_timestamp": begin_s, "data": {"input": call.arguments}}
    result = call.result if call.error is None else call.error
    at_end = {"event_timestamp": end_s, "data": {"input": call.arguments, "output": result}}
    for payload in (
        {"event_type": IntermediateStepType.TOOL_START, **at_start},
        {"event_type": IntermediateStepType.TOOL_END, "span_event_timestamp": begin_s, **at_end},
    ):
        step = IntermediateStepPayload.model_validate(shared | payload)
        yield model_step.model_copy(update={"payload": step})


def logprobs_of(turn: TurnRecorded) -> dict[str, Any]:
    """Return a turn's log-probs as an `EpisodeItem` takes them, with the token ids of a turn that can be trained."""
    if not turn.logprobs:
        return {}
    prompt, completion = turn.prompt_token_ids, turn.completion_token_ids
    prompt_ids: Sequence[int] = ()
    ids: Sequence[int] = ()
    if turn.trainable and prompt and completion:
        prompt_ids, ids = decode_token_ids(prompt), decode_token_ids(completion)
    return logprobs_with_tokens(turn, prompt_ids, ids, decode_logprobs(turn.logprobs), turn.policy_version)
