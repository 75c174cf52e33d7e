"""What a score is grouped by: its problem, its task, and the cells of openings like its own. Pure text."""

from collections.abc import Iterator

from rollbus.schemas.ids import SEPARATOR, join_parts
from rollbus.schemas.records.trajectories import Score
from rollbus.streams.stages.grouping.tracker import Breadth

BEGINNERS = "task:"
"""Begins the key of the group of a task's first attempts."""


def problem_key(score: Score, strategy: str) -> str:
    """Return what attempts at one problem share: an explicit group, else the example, else the prompt.

    Without token ids the messages of the opening are the prompt.
    """
    if score.group_id is not None:
        return f"group:{score.group_id}"
    return _prompt(score) if _is_by_prompt(score, strategy) else _example(score)


def open_group_key(score: Score, strategy: str) -> str:
    """Return the key of the group for attempts at one problem; those of another model are in another group."""
    base = problem_key(score, strategy)
    if score.group_id is not None:
        return base
    tools = score.tools_hash if _is_by_prompt(score, strategy) else ""
    return SEPARATOR.join((base, score.model, tools))


def task_key(score: Score) -> str:
    """Return the key of all attempts at a task by one model, under which its first ones wait for one another."""
    return f"{BEGINNERS}{score.task}{SEPARATOR}{score.model}"


def fingerprint(score: Score) -> tuple[str, ...]:
    """Return what a revision of a score cannot change: the members of its group share it, or may have to."""
    return score.task, score.example_id or "", score.group_id or "", score.model, score.prompt_hash, score.tools_hash


def level_keys(score: Score, similar_by: str | None) -> Iterator[tuple[Breadth, tuple[str, ...]]]:
    """Yield what is known of an attempt beforehand: by task, by openings alike, or by that label, and by example.

    Each is of one version of the rewards: what another one has earned says nothing about this one.
    """
    task = f"{task_key(score)}{SEPARATOR}{score.reward_version}"
    yield "task", (task,)
    if similar_by is None:
        cells = [score.opening_sketch[start : start + 2] for start in range(0, len(score.opening_sketch), 2)]
        yield "opening", tuple(f"cell:{place}:{cell}{SEPARATOR}{task}" for place, cell in enumerate(cells))
    elif similar_by in score.labels:
        yield "opening", (f"{join_parts('label', similar_by, score.labels[similar_by])}{SEPARATOR}{task}",)
    yield "example", (example_key(score),)


def example_key(score: Score) -> str:
    """Return the key of what an example, or, without one, its prompt has earned by one version of the rewards."""
    key = _prompt(score) if score.example_id is None else _example(score)
    return SEPARATOR.join((key, score.model, score.reward_version))


def _is_by_prompt(score: Score, strategy: str) -> bool:
    return strategy == "by_prompt" or score.example_id is None


def _example(score: Score) -> str:
    return join_parts("example", score.task, score.example_id)


def _prompt(score: Score) -> str:
    kind, prompt = ("prompt", score.prompt_hash) if score.prompt_hash else ("opening", score.opening_hash)
    return join_parts(kind, score.task, prompt)
