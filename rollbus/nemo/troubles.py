"""What goes wrong in finetuning, each as an error that says what to look at."""

import sysconfig
import traceback
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, SupportsFloat

from rollbus.schemas.errors import ConfigurationError, RunStoppedError, UnavailableError
from rollbus.schemas.numbers import computable

LIBRARY_FOLDERS = (
    *{sysconfig.get_paths()[name] for name in ("stdlib", "purelib", "platlib")},
    str(Path(__file__).parents[1]),
)
"""Folders of Python, of installed packages and of rollbus: files elsewhere are the user's."""
WITHOUT_LOGPROBS = ("no_logprobs", "missing_logprobs", "no_token_ids", "no_prompt_token_ids", "invalid_logprobs")
NO_TOKEN_IDS = "none has token ids"
"""Of the episodes of an epoch."""


def no_connection(url: str, detail: str = "") -> UnavailableError:
    """Nothing answers at the configured address."""
    return UnavailableError(
        f"Failed to connect to ART backend at {url}{f' ({detail})' if detail else ''}: see that the server runs "
        f"(`curl {url}/health`; start ours with `rollbus art-server run`), that `ip` and `port` under `backend` are "
        "its own, and that no firewall is in between"
    )


def no_trajectories(
    epoch: int, target_functions: Sequence[str], reasons: Mapping[str, int], attempts: str
) -> RunStoppedError:
    """An epoch without a trajectory that could be trained; `attempts` says what was recorded."""
    summary = "; ".join(filter(None, (attempts, describe_counts(reasons))))
    lacks_logprobs = bool(reasons) and all(any(code in reason for code in WITHOUT_LOGPROBS) for reason in reasons)
    if lacks_logprobs or NO_TOKEN_IDS in attempts:
        return RunStoppedError(
            f"No valid assistant messages with logprobs in epoch {epoch + 1} ({summary}): the endpoint must return "
            "log-probs and token ids (`logprobs: true`, vLLM: `return_token_ids`); see `base_url` under `llms`, and "
            "that the workflow asks the model that the configuration gives it"
        )
    return RunStoppedError(
        f"No trajectories collected for epoch {epoch + 1} ({summary}): see that target_functions "
        f"{list(target_functions)} and target_model name what the workflow calls, that it asks a model under `llms`, "
        "that the evaluator returns a score, and the workflow's own errors above"
    )


def nothing_trained(epochs: Mapping[int, Mapping[str, int]]) -> str:
    """Name the epochs that trained nothing, with why their trajectories were left out."""
    reasons: Counter[str] = Counter()
    for reasons_of_epoch in epochs.values():
        reasons.update(reasons_of_epoch)
    numbers = ", ".join(str(epoch + 1) for epoch in epochs)
    why = describe_counts(reasons) or "no trajectory reached the trainer"
    return f"nothing was trained in epoch {numbers} ({why}); see what the builder makes and what the stages leave out"


def preference_pairs() -> RunStoppedError:
    """Pairs of answers for a trainer of groups."""
    return RunStoppedError(
        "the trajectory builder makes preference pairs (DPOItem), and this trainer trains groups of attempts; name a "
        "trainer of `_type: nemo_customizer_trainer`"
    )


def describe_counts(reasons: Mapping[str, int]) -> str:
    """Return reasons with how often each came, as text; of one reason with many details the first is named."""
    by_name: dict[str, dict[str, int]] = {}
    for reason, number in reasons.items():
        by_name.setdefault(reason.partition(" (")[0], {})[reason] = number
    texts = []
    for name, counts in by_name.items():
        first = next(iter(counts))
        reason = first if len(counts) == 1 else first.replace(f"{name} (", f"{name} (such as ", 1)
        texts.append(f"{reason}: {sum(counts.values())}")
    return ", ".join(texts)


def training_failed(message: str) -> str:
    """Return the message of a failed job, with its remedy where it is known."""
    if "out of memory" in message.lower():
        return (
            f"CUDA out of memory: {message}; reduce `engine_args.gpu_memory_utilization` or "
            "`init_args.max_seq_length` under `backend`, or `num_generations`, or increase "
            "`engine_args.tensor_parallel_size`"
        )
    return message


def rewards_flat(epochs: int, mean: float) -> RunStoppedError:
    """Several epochs in a row had no group whose rewards differ, so nothing was trained."""
    return RunStoppedError(
        f"Rewards are flat: {epochs} epochs in a row had no group whose rewards differ (mean {mean:.4f}), so nothing "
        "was trained; increase `num_generations`, sample at a higher `temperature`, check that the evaluator tells "
        "attempts apart, and that `min_reward_diff` is not above what it gives"
    )


def describe_crash(error: BaseException) -> str:
    """Return a user's exception, with the innermost place that is in a file of theirs."""
    while error.__cause__ is not None:
        error = error.__cause__
    place = ""
    for frame in traceback.extract_tb(error.__traceback__):
        if not frame.filename.startswith(LIBRARY_FOLDERS) and "<frozen" not in frame.filename:
            place = f" ({frame.filename}, line {frame.lineno}, in {frame.name})"
    return f"{type(error).__name__}: {error}{place}"


def as_number(value: object) -> float | None:
    """Return a score that can be computed with as a number, also one of NumPy, torch or `decimal`; None of others."""
    try:
        number = float(value) if isinstance(value, SupportsFloat) else None
    except (TypeError, ValueError, OverflowError):  # an array of several, or a whole number beyond what a float holds
        return None
    return number if number is not None and computable(number) else None


def step_rewards(item: Any) -> list[float] | None:
    """Return the rewards of an evaluated example's steps; None where they are not numbers."""
    values = getattr(item, "shaped_rewards", None)
    try:
        numbers = [as_number(value) for value in (() if values is None else values)]
    except TypeError:
        return None
    rewards = [number for number in numbers if number is not None]
    return rewards if len(rewards) == len(numbers) else None


def worth_of(item: Any) -> float | None:
    """Return an evaluated example's score with the rewards of its steps; None without a score, which is not 0."""
    score, shaped = as_number(item.score), step_rewards(item)
    return None if score is None or shaped is None else as_number(score + sum(shaped))


def require_own_ids(items: Sequence[Any]) -> None:
    """Raise ConfigurationError where examples cannot be told apart: the toolkit's loader takes a row without an id."""
    numbers = Counter(str(item.id) for item in items)
    name, number = next(iter(numbers.most_common(1)), ("", 0))
    if number > 1:
        raise ConfigurationError(
            f"{number} of {len(items)} examples have the id {name!r}; give each row its own, in the column that "
            "`eval.general.dataset.id_key` names (`id`)"
        )


def require_type(value: Any, expected_type: Any, method: str, words: str = "") -> None:
    """Raise RunStoppedError where a user's method returned something else than is expected."""
    if not isinstance(value, expected_type):
        raise RunStoppedError(f"{method} returned {type(value).__name__}; expected {words or expected_type.__name__}")
