"""A TrajectoryCollection that a user's builder made → episodes on the bus, one group per inner list.

They take the way of every episode: the stages target, filter and order them. Trained are the ids that the log-probs
carry (`prompt_token_ids`, `token_ids`), never a re-tokenisation; without them an item has its reason.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, pairwise
from itertools import count as count_from
from statistics import fmean
from typing import Any

from nat.data_models.finetuning import DPOItem, EpisodeItem, EpisodeItemRole, Trajectory, TrajectoryCollection

from rollbus.nemo.bus.run_view import ExampleAttempt, group_id_of
from rollbus.nemo.bus.transcripts import PUBLISHED, STEP_REWARD
from rollbus.nemo.runs.run_recording import RunRecording
from rollbus.producers.turns.answer import AnswerChoice, ServerAnswer
from rollbus.producers.turns.sampling_settings import NEUTRAL
from rollbus.producers.turns.turn_record import Exchange
from rollbus.schemas.errors import ConfigurationError
from rollbus.schemas.records.events import TurnRecorded

TASK = "workflow"


async def record_trajectory(
    recording: RunRecording,
    attempt: ExampleAttempt,
    trajectory: Trajectory,
    *,
    group_size: int,
    reward_name: str,
    model: str,
    function: str,
) -> None:
    """Record a trajectory as an episode; `model` and `function` are of its turns, where the log-probs do not say."""
    recording.watch(attempt.episode_id)
    episode = recording.recorder.start(
        task=TASK,
        example_id=attempt.example_id,
        group_id=group_id_of(attempt.run_id, attempt.epoch, attempt.example_id),
        group_size=group_size,
        labels=labels_of(attempt),
        episode_id=attempt.episode_id,
    )
    messages: list[dict[str, Any]] = []
    for item in trajectory.episode:
        assert isinstance(item, EpisodeItem)
        message = _message(item)
        if item.role is EpisodeItemRole.ASSISTANT:
            episode.record(_exchange(messages, message, item.logprobs, model), function)
        messages.append(message)
    if (problem := order_problem(trajectory)) is not None:
        episode.exclude(problem)
    turns = [event.event_id for event in await recording.take(attempt.episode_id) if isinstance(event, TurnRecorded)]
    for number, value in enumerate(trajectory.shaped_rewards or ()):
        turn = turns[min(number, len(turns) - 1)] if turns else None
        episode.reward(value, name=f"{reward_name}.{STEP_REWARD}", turn=turn, source="evaluator")
    episode.reward(total(trajectory), name=reward_name, source="evaluator")
    episode.end()


def order_problem(trajectory: Trajectory) -> str | None:
    """Say what is wrong with the order of an episode's messages, by the rules of the guide."""
    roles = [item.role for item in trajectory.episode if isinstance(item, EpisodeItem)]
    if roles and roles[0] not in (EpisodeItemRole.USER, EpisodeItemRole.SYSTEM):
        return f"the first message is of {roles[0].value}, and must be of user or system"
    if any(role is other is EpisodeItemRole.ASSISTANT for role, other in pairwise(roles)):
        return "two assistant messages follow each other"
    return None


def total(trajectory: Trajectory) -> float:
    """Return what a trajectory is worth: its reward and those of its steps."""
    return float(trajectory.reward) + sum(trajectory.shaped_rewards or ())


def rewards_of(collection: TrajectoryCollection) -> list[float]:
    """Return what each trajectory is worth."""
    return [total(trajectory) for trajectory in chain(*collection.trajectories)]


def summary_of(rewards: Sequence[float]) -> dict[str, Any]:
    """Return mean, least and greatest of rewards, by the toolkit's names; None of nothing."""
    mean = fmean(rewards) if rewards else None
    return {"avg_reward": mean, "min_reward": min(rewards, default=None), "max_reward": max(rewards, default=None)}


def count(collection: TrajectoryCollection) -> int:
    """Return how many trajectories there are in all groups."""
    return sum(map(len, collection.trajectories))


def id_of(trajectory: Trajectory) -> str | None:
    """Return which record a trajectory is; None of one that is not on the log yet."""
    record_id = (trajectory.metadata or {}).get(PUBLISHED)
    return None if record_id is None else str(record_id)


def has_pairs(collection: TrajectoryCollection) -> bool:
    """Whether these are preference pairs, which are not episodes."""
    return any(isinstance(item, DPOItem) for member in chain(*collection.trajectories) for item in member.episode)


def example_names(collection: TrajectoryCollection) -> Iterator[str]:
    """Yield each group's name: the first id in its trajectories, with a number if groups share it."""
    taken_names: set[str] = set()
    for index, group in enumerate(collection.trajectories):
        ids = (member.metadata.get("id") for member in group if member.metadata)
        first_id = next((str(name) for name in ids if name is not None), str(index))
        names = chain([first_id], (f"{first_id}#{number}" for number in count_from(2)))
        taken_names.add(name := next(name for name in names if name not in taken_names))
        yield name


def labels_of(attempt: ExampleAttempt) -> dict[str, str]:
    """Return what every trajectory of a run carries."""
    return {"run": attempt.run_id, "epoch": str(attempt.epoch), "generation": str(attempt.generation)}


def _exchange(messages: list[dict[str, Any]], completion: Mapping[str, Any], logprobs: Any, model: str) -> Exchange:
    values = tuple(_field(token, "logprob") for token in _field(logprobs, "content") or ())
    choice = AnswerChoice(
        content=completion["content"],
        tool_calls=completion.get("tool_calls", ()),
        finish_reason="stop",
        logprobs=values,
        token_ids=_field(logprobs, "token_ids"),
    )
    answer = ServerAnswer(
        model=str(_field(logprobs, "model") or model),
        prompt_token_ids=_field(logprobs, "prompt_token_ids"),
        completion_tokens=len(values),
        choices=(choice,),
    )
    sampling = {name: value for name in NEUTRAL if (value := _field(logprobs, name)) is not None}
    if "temperature" in sampling:
        sampling = {**NEUTRAL, **sampling}
    request = {"messages": list(messages), **sampling}
    return Exchange(request=request, answer=answer, logprob_mode=_field(logprobs, "logprob_mode") or "raw")


def _message(item: EpisodeItem) -> dict[str, Any]:
    metadata = item.metadata or {}
    fields = {name: str(metadata[name]) for name in ("name", "tool_call_id") if metadata.get(name)}
    if calls := tuple(map(_tool_call, _read_calls(metadata.get("tool_calls")))):
        fields["tool_calls"] = calls  # type: ignore[assignment]
    return {"role": item.role.value, "content": item.content, **fields}


def _read_calls(value: Any) -> Sequence[Mapping[str, Any]]:
    """Return calls from a list, a single one, or the JSON of either; raises ConfigurationError for anything else."""
    try:
        calls = json.loads(value) if isinstance(value, str) and value else value
    except ValueError:
        calls = (value,)
    calls = (calls,) if isinstance(calls, Mapping) else calls or ()
    if not isinstance(calls, list | tuple) or not all(isinstance(call, Mapping) for call in calls):
        raise ConfigurationError(f"`tool_calls` in the metadata of a message is not a list of calls: {value!r:.200}")
    return calls


def _tool_call(call: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a call in OpenAI's form, also one in LangChain's, or with its `arguments` next to its name."""
    if "function" in call:
        return call
    arguments = call.get("args", call.get("arguments", {}))
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, default=str)
    return {"id": call.get("id"), "type": "function", "function": {"name": call.get("name"), "arguments": text}}


def _field(value: Any, name: str) -> Any:
    """Return a field of log-probs, which may be a mapping or an object of the OpenAI package."""
    return value.get(name) if isinstance(value, Mapping) else getattr(value, name, None)
