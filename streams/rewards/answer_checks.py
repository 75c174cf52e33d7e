"""Rewards that a rule gives an answer by itself: no feedback, no other model. Pure but for the clock of `regex`."""

import re
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

from rollbus.schemas.ids import parse_json
from rollbus.schemas.records.tokens import token_count
from rollbus.schemas.records.trajectories import Trajectory
from rollbus.streams.rewards.contract import RewardContext, last_text

SEARCHED_CHARACTERS = 20_000
SEARCHED_WITHIN_S = 1.0


def exact_match(trajectory: Trajectory, context: RewardContext) -> float | None:
    """Return 1 where the last completion is the expected text, else 0; None without an expected text.

    That is the option `answer`, or the episode's label named by `label` (`answer` by default). Surrounding space does
    not count, nor case where `ignore_case` is set.
    """
    options = context.options
    expected_answer = options.get("answer")
    if expected_answer is None:
        expected_answer = trajectory.labels.get(str(options.get("label") or "answer"))
    if expected_answer is None:
        return None
    answer, expected_text = last_text(trajectory).strip(), str(expected_answer).strip()
    if options.get("ignore_case"):
        answer, expected_text = answer.casefold(), expected_text.casefold()
    return float(answer == expected_text)


def json_valid(trajectory: Trajectory, context: RewardContext) -> float | None:
    """Return 1 where the last completion is a JSON value, else 0; `required` lists names that its object must have.

    A fenced block (```json … ```) counts as its content where `fenced` is set.
    """
    text = last_text(trajectory).strip()
    if context.options.get("fenced") and text.startswith("```") and text.endswith("```"):
        text = text.removeprefix("```json").removeprefix("```").removesuffix("```")
    try:
        value = parse_json(text, is_strict=True)
    except ValueError:
        return 0.0
    required = [name.strip() for name in str(context.options.get("required") or "").split(",") if name.strip()]
    return float(not required or (isinstance(value, dict) and all(name in value for name in required)))


def length(trajectory: Trajectory, context: RewardContext) -> float | None:
    """Return how short the answer is: 1 up to `target` sampled tokens, falling to 0 at `limit`; None without tokens.

    Sampled tokens are those of all turns; without `limit` it is twice the target. Raises ValueError for a limit that is
    not above the target.
    """
    sampled = sum(token_count(history.logprobs) for history in trajectory.histories)
    if not sampled:
        return None
    target = float(context.options["target"] or 0)
    limit = float(context.options.get("limit") or 2 * target)
    if limit <= target:
        raise ValueError(f"length: limit {limit} must be above target {target}")
    return min(1.0, max(0.0, (limit - sampled) / (limit - target)))


def regex(trajectory: Trajectory, context: RewardContext) -> float | None:
    """Return 1 where the last completion matches the option `pattern`, else 0; `full` asks for the whole text.

    The text is cut to its last 20,000 characters. A pattern that backtracks for more than `within_s` seconds (1) fails
    its trajectory: Python's `re` lets no other thread run while it searches, but in the main thread it reacts to
    signals.
    """
    pattern = _compile_pattern(str(context.options["pattern"]))
    text = last_text(trajectory)[-SEARCHED_CHARACTERS:]
    with _interrupted_after(float(context.options.get("within_s") or SEARCHED_WITHIN_S)):
        match = pattern.fullmatch(text) if context.options.get("full") else pattern.search(text)
    return float(match is not None)


@contextmanager
def _interrupted_after(seconds: float) -> Iterator[None]:
    """Raise TimeoutError in the main thread after so long; other threads cannot be interrupted."""
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "setitimer"):
        yield
        return

    def interrupt(number: int, frame: Any) -> None:
        raise TimeoutError(f"the pattern ran for more than {seconds:g} s")

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, seconds)
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@lru_cache(maxsize=256)
def _compile_pattern(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.DOTALL)
