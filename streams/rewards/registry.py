"""The table of reward functions, and the users' own from the entry-point group `rollbus.rewards`.

An entry point names a RewardFunction, or a plain function, which becomes one that runs in a thread with a timeout.
"""

import inspect
from collections.abc import Iterable, Mapping
from importlib.metadata import entry_points
from typing import Any, Literal

from rollbus.schemas.errors import ConfigurationError
from rollbus.schemas.ids import content_hash
from rollbus.schemas.records.config import ComponentConfig, ScoringConfig
from rollbus.streams.rewards.answer_checks import exact_match, json_valid, length, regex
from rollbus.streams.rewards.contract import RewardFunction
from rollbus.streams.rewards.feedback import feedback
from rollbus.streams.rewards.guards import copied, refused, repetition, surprisal
from rollbus.streams.rewards.judge import judge
from rollbus.streams.rewards.judge_relative import judge_relative
from rollbus.streams.rewards.next_turn.judge import next_turn_judge
from rollbus.streams.rewards.next_turn.rules import next_turn
from rollbus.streams.rewards.options import find_mistakes

ENTRY_POINTS = "rollbus.rewards"
Registry = Mapping[str, RewardFunction]

NEXT_TURN = "next_turn"
"""The one that reads what users did next, and the name of the reports that conversations give."""
NEXT_TURN_JUDGE = "next_turn_judge"
"""The one that is asked when a user has spoken, and not with the trajectory."""
BUILT_IN: Registry = {
    "copied": RewardFunction(copied),
    "exact_match": RewardFunction(exact_match, quick=True),
    "feedback": RewardFunction(feedback, quick=True, reads_feedback=True),
    "json_valid": RewardFunction(json_valid, quick=True),
    "judge": RewardFunction(judge, version="2"),
    "judge_relative": RewardFunction(judge_relative, per="group"),
    "length": RewardFunction(length, quick=True),
    NEXT_TURN: RewardFunction(next_turn, quick=True, reads_feedback=True),
    NEXT_TURN_JUDGE: RewardFunction(next_turn_judge, reads_feedback=True),
    "refused": RewardFunction(refused, quick=True),
    "regex": RewardFunction(regex, quick=True),
    "repetition": RewardFunction(repetition),
    "surprisal": RewardFunction(surprisal),
}
ASKS_A_MODEL = frozenset({"judge", "judge_relative", NEXT_TURN_JUDGE})
"""Those that ask another model."""


def load_registry() -> Registry:
    """Return the built-in functions and those of installed packages; raises ConfigurationError for a broken one."""
    functions = dict(BUILT_IN)
    for entry in entry_points(group=ENTRY_POINTS):
        if entry.name in BUILT_IN:
            raise ConfigurationError(f"entry point {entry.value} must not take the built-in name {entry.name!r}")
        try:
            functions[entry.name] = reward_function(entry.load())
        except Exception as error:
            raise ConfigurationError(f"reward {entry.name!r}: {entry.value} cannot be loaded: {error!r}") from error
    return functions


def reward_function(loaded: Any, version: str = "1") -> RewardFunction:
    """Return what a user's module names as a reward function; raises TypeError for what no score could come of."""
    reward_function = loaded if isinstance(loaded, RewardFunction) else RewardFunction(loaded, version=version)
    try:
        signature = inspect.signature(reward_function.call)
    except ValueError:
        return reward_function  # some that are written in C have no signature
    except TypeError:
        raise TypeError(f"{reward_function.call!r:.200} is not a function") from None
    try:
        signature.bind(None, None)
    except TypeError as error:
        first = "group" if reward_function.per == "group" else "trajectory"
        raise TypeError(f"a reward is called with ({first}, context), and this takes {signature}: {error}") from None
    return reward_function


def function_of(registry: Registry, reward: ComponentConfig) -> RewardFunction:
    """Return the function of a component; raises ConfigurationError for a name that is not registered."""
    try:
        return registry[reward.type]
    except KeyError:
        type_names = ", ".join(sorted(registry))
        raise ConfigurationError(
            f"reward {reward.name!r}: no function {reward.type!r}; there are {type_names}; "
            f"your own come from the entry-point group {ENTRY_POINTS}"
        ) from None


def check(registry: Registry, rewards: Iterable[ComponentConfig], per: Literal["trajectory", "group"]) -> None:
    """Raise ConfigurationError for a component that is not registered, that is over something else, or that has an
    option which its function cannot read; functions of users take any options.
    """
    mistakes = []
    for reward in rewards:
        function = function_of(registry, reward)
        unit = function.per
        if unit != per:
            where = {"group": "a run's grouping.rewards", "trajectory": "scoring.rewards"}[unit]
            raise ConfigurationError(f"reward {reward.name!r}: {reward.type!r} is over a {unit}; it goes into {where}")
        if function == BUILT_IN.get(reward.type):
            mistakes += [f"reward {reward.name!r}: {mistake}" for mistake in find_mistakes(reward)]
    if mistakes:
        raise ConfigurationError("; ".join(mistakes))


def reward_version(registry: Registry, config: ScoringConfig) -> str:
    """Return the hash of everything a score's value depends on, but for the trajectory."""
    return content_hash([*_parts(registry, config.rewards), config.clip_low, config.clip_high])


def group_reward_version(registry: Registry, rewards: Iterable[ComponentConfig], before: str) -> str:
    """Return the hash of what a member's reward depends on: its own score's version, and the functions over groups."""
    return content_hash([before, *_parts(registry, rewards)])


def _parts(registry: Registry, rewards: Iterable[ComponentConfig]) -> list[Any]:
    return [
        [function_of(registry, reward).version, reward.type, reward.name, reward.weight, reward.options]
        for reward in rewards
    ]
