"""The options of the built-in rewards: which there are, which are needed, and which values can be read. Pure.

They are checked before anything is scored. A function meets a wrong option only where a log has it from an earlier
release, and then fails trajectory by trajectory.
"""

import math
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial

from rollbus.schemas.records.config import ComponentConfig
from rollbus.streams.rewards.contract import Option
from rollbus.streams.rewards.feedback import COMBINE
from rollbus.streams.rewards.next_turn.judge import EVERYWHERE, JUDGE, USER
from rollbus.streams.rewards.next_turn.rules import CONFIDENCE, UNCLEAR, WORDS

Check = Callable[[Option], None]
"""Raises ValueError for a value that cannot be read; it is never asked about null, which is as good as no option."""


@dataclass(frozen=True, slots=True)
class RewardOptions:
    """What one built-in reward takes."""

    checks: Mapping[str, Check]
    needed: frozenset[str] = frozenset()
    check_together: Callable[[Mapping[str, Option]], None] = lambda _: None
    """Raises ValueError for values that are wrong only together."""


def find_mistakes(reward: ComponentConfig) -> list[str]:
    """Return what is wrong with the options of a component of a built-in type."""
    options_of_type = OPTIONS[reward.type]
    options = {name: value for name, value in reward.options.items() if value is not None}
    mistakes = []
    for name in sorted({*reward.options} - {*options_of_type.checks}):
        takes = f"it takes {', '.join(sorted(options_of_type.checks))}" if options_of_type.checks else "it takes none"
        mistakes.append(f"{reward.type} has no option {name}; {takes}")
    mistakes += [
        f"{reward.type} needs the option {name}, such as `options: {{{name}: {EXAMPLES[name]}}}`"
        for name in sorted(options_of_type.needed - {*options})
    ]
    for name in sorted({*options} & {*options_of_type.checks}):
        try:
            options_of_type.checks[name](options[name])
        except ValueError as error:
            mistakes.append(f"the option {name} is {options[name]!r}, {error}")
    if not mistakes:
        try:
            options_of_type.check_together(options)
        except ValueError as error:
            mistakes.append(str(error))
    return mistakes


def _take_any(value: Option) -> None:
    """Take every value: it is read as a text."""


def _require_flag(value: Option) -> None:
    if not isinstance(value, bool):
        raise ValueError("not true or false")


def _require_number(value: Option, *, above: float = -math.inf, least: float = -math.inf) -> None:
    try:
        number = math.nan if isinstance(value, bool) or value is None else float(value)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise ValueError("not a number")
    if number <= above:
        raise ValueError(f"not above {above:g}")
    if number < least:
        raise ValueError(f"below {least:g}")


def _require_count(value: Option) -> None:
    _require_number(value, least=1)
    if float(value or 0) != int(float(value or 0)):
        raise ValueError("not a whole number")


def _require_one_of(words: Collection[Option], value: Option) -> None:
    if value not in words:
        raise ValueError(f"none of {', '.join(map(str, words))}")


def _require_pattern(value: Option) -> None:
    try:
        re.compile(str(value), re.DOTALL)
    except re.error as error:
        raise ValueError(f"no regular expression: {error}") from error


def _require_room(options: Mapping[str, Option]) -> None:
    """Refuse a limit of `length` below its target: no answer could be worth anything between."""
    target = float(options["target"] or 0)
    limit = float(options.get("limit") or 2 * target)
    if limit <= target:
        raise ValueError(f"the option limit is {limit:g}; it must be above target, {target:g}")


EXAMPLES = {"pattern": "'^ok$'", "target": "200"}
"""A value of each option that is needed."""
_ASKED_MODEL: Mapping[str, Check] = {
    "model": _take_any,
    "temperature": partial(_require_number, least=0),
    "max_tokens": _require_count,
}
_RULES: Mapping[str, Check] = {**dict.fromkeys(CONFIDENCE, _require_number), **dict.fromkeys(WORDS, _take_any)}
_NONE, _RUN = RewardOptions({}), RewardOptions({"n": _require_count})
OPTIONS: Mapping[str, RewardOptions] = {
    "copied": _RUN,
    "exact_match": RewardOptions({"answer": _take_any, "label": _take_any, "ignore_case": _require_flag}),
    "feedback": RewardOptions(
        {"report": _take_any, "source": _take_any, "combine": partial(_require_one_of, tuple(COMBINE))}
    ),
    "json_valid": RewardOptions({"fenced": _require_flag, "required": _take_any}),
    "judge": RewardOptions({"rubric": _take_any, "scale": partial(_require_number, above=0), **_ASKED_MODEL}),
    "judge_relative": RewardOptions({"rubric": _take_any, **_ASKED_MODEL}),
    "length": RewardOptions(
        {"target": partial(_require_number, least=0), "limit": partial(_require_number, above=0)},
        frozenset({"target"}),
        _require_room,
    ),
    "next_turn": RewardOptions(_RULES),
    "next_turn_judge": RewardOptions(
        {
            "where": partial(_require_one_of, (EVERYWHERE, UNCLEAR)),
            "hint": partial(_require_one_of, (USER, JUDGE)),
            "rubric": _take_any,
            **_RULES,
            **_ASKED_MODEL,
        }
    ),
    "refused": RewardOptions({"phrases": _take_any}),
    "regex": RewardOptions(
        {"pattern": _require_pattern, "full": _require_flag, "within_s": partial(_require_number, above=0)},
        frozenset({"pattern"}),
    ),
    "repetition": _RUN,
    "surprisal": _NONE,
}
"""By type."""
