"""What goes wrong in finetuning, each as an error that says what to look at."""

from collections.abc import Mapping, Sequence

from rollbus.schemas.errors import RunStoppedError, UnavailableError

WITHOUT_LOGPROBS = ("no_logprobs", "missing_logprobs", "no_token_ids", "no_prompt_token_ids", "invalid_logprobs")


def no_connection(url: str, detail: str = "") -> UnavailableError:
    """Nothing answers at the configured address."""
    return UnavailableError(
        f"Failed to connect to ART backend at {url}{f' ({detail})' if detail else ''}: see that the server runs "
        f"(`curl {url}/health`; start ours with `rollbus art-server run`), that `ip` and `port` under `backend` are "
        "its own, and that no firewall is in between"
    )


def no_trajectories(epoch: int, target_functions: Sequence[str], reasons: Mapping[str, int]) -> RunStoppedError:
    """An epoch without a trajectory that could be trained."""
    told = ", ".join(f"{reason}: {count}" for reason, count in reasons.items()) or "no episode was recorded"
    codes = {reason.split(" ")[0] for reason in reasons}
    if codes and all(any(code in reason for code in WITHOUT_LOGPROBS) for reason in reasons):
        return RunStoppedError(
            f"No valid assistant messages with logprobs in epoch {epoch + 1} ({told}): the endpoint must return "
            "log-probs and token ids (`logprobs: true`, vLLM: `return_token_ids`); see `base_url` under `llms`, and "
            "that the workflow asks the model that the configuration gives it"
        )
    return RunStoppedError(
        f"No trajectories collected for epoch {epoch + 1} ({told}): see that target_functions "
        f"{list(target_functions)} and target_model name what the workflow calls, that it asks a model under `llms`, "
        "that the evaluator returns a score, and the workflow's own errors above"
    )


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
