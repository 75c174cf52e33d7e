"""Turns of a batch → how far their recorded log-probs are from the model's own, by source; too far is refused.

A server may have sampled otherwise than the record says: at a temperature of its own configuration, from other weights,
with tokens cut away. GRPO would then correct for a policy that never was. So a few turns of each source are computed
again by the weights that they name, before a gradient is made: those of the step's base version in every batch, and of
a source that only sent turns of older versions once, by their checkpoint.
"""

from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor, nn

from rollbus.schemas.errors import RejectedError
from rollbus.schemas.records.tokens import decode_logprobs, decode_token_ids
from rollbus.trainer.art_server.model.model import head, trunk
from rollbus.trainer.backends.admission import (
    UNKNOWN_CAUSE,
    Agreement,
    compare_logprobs,
    describe_disagreement,
    is_cut,
    name_cut,
)
from rollbus.trainer.backends.protocol import TurnTokens

FIRST_TURNS, LATER_TURNS = 8, 1
"""Of a source that is new or suspected, and of one that agreed before, which is to cost less than two in a hundred of a
step. One short turn that differs is only a suspicion: in bfloat16 a single token may be off by more than the bound."""
LONGEST_TOKENS = 4096
"""Of a turn that is computed again; a longer one is left out while a shorter one is there."""
TEMPERATURES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.1, 1.2, 1.3, 1.5)
"""Tried as the cause of a difference."""


class AgreementCheck:
    """Remembers which sources agreed since this process began."""

    def __init__(self) -> None:
        self._agreed: set[str] = set()

    def require(
        self,
        turns: Iterable[TurnTokens],
        *,
        base_version: int,
        most: float,
        model: nn.Module,
        load: Callable[[int], nn.Module | None],
    ) -> dict[str, float]:
        """Return the greatest difference, as a metric of the step. RejectedError names a source beyond `most`.

        `model` holds the base version; `load` reads another one, or returns None where it is not kept any more.
        """
        differences = []
        for (source, version), chosen in self._choose(turns, base_version).items():
            network = model if version == base_version else load(version)
            if network is None:
                continue
            looked_at = chosen[: LATER_TURNS if source in self._agreed else FIRST_TURNS]
            agreement = measure(network, source, version, looked_at)
            if not agreement.difference <= most and len(looked_at) < len(chosen):  # NaN is not agreement
                agreement = measure(network, source, version, chosen)
            if agreement.is_beyond(most):
                others = sorted({version - 1, version + 1, 0} - {version, -1})
                cause = find_cause(network, chosen, most=most, versions=others, load=load)
                raise RejectedError(describe_disagreement(agreement, cause, most=most))
            if agreement.difference <= most:
                self._agreed.add(source)
            differences.append(agreement.difference)
        return {"source_difference_max": max(differences)} if differences else {}

    def _choose(self, turns: Iterable[TurnTokens], base_version: int) -> dict[tuple[str, int], list[TurnTokens]]:
        """Return the turns to compute again, by source and version: the shortest, so that the order does not matter."""
        turns_by_source: dict[str, list[TurnTokens]] = {}
        for turn in turns:
            turns_by_source.setdefault(turn.source, []).append(turn)
        chosen = {}
        for source, of_source in sorted(turns_by_source.items()):
            versions = {turn.policy_version for turn in of_source}
            if base_version not in versions and source in self._agreed:
                continue
            version = base_version if base_version in versions else max(versions)
            candidates = sorted((turn for turn in of_source if turn.policy_version == version), key=_length)
            fitting = [turn for turn in candidates if _length(turn)[0] <= LONGEST_TOKENS] or candidates[:1]
            chosen[source, version] = fitting[:FIRST_TURNS]
        return chosen


def measure(model: nn.Module, source: str, version: int, turns: Sequence[TurnTokens]) -> Agreement:
    """Compute the turns again, and compare token by token."""
    return compare_logprobs(source, version, _differences(model, turns).tolist())


def find_cause(
    model: nn.Module,
    turns: Sequence[TurnTokens],
    *,
    most: float,
    versions: Iterable[int],
    load: Callable[[int], nn.Module | None],
) -> str:
    """Say what explains the difference: a temperature, the weights of another version, or tokens that were left out."""
    by_temperature = {temperature: _differences(model, turns, temperature) for temperature in (1.0, *TEMPERATURES)}
    distance, temperature = min((float(diffs.abs().mean()), temp) for temp, diffs in by_temperature.items())
    if distance <= most:
        return _name_temperature(temperature)
    for version in versions:
        other = load(version)
        if other is not None and float(_differences(other, turns).abs().mean()) <= most:
            return _name_version(version)
    cuts = [
        (float(differences.mean()), temperature)
        for temperature, differences in by_temperature.items()
        if is_cut(differences.tolist())
    ]
    return name_cut(min(cuts)[1]) if cuts else UNKNOWN_CAUSE


def _name_temperature(temperature: float) -> str:
    """Say that the turns agree at a temperature that their record does not name."""
    return (
        f"they agree at temperature {temperature:g}, so the server sampled at that one, as vLLM does by a model's "
        "generation_config.json unless it runs with `--generation-config vllm`"
    )


def _name_version(version: int) -> str:
    """Say that the turns agree with another version than their record names."""
    return (
        f"they agree with version {version}, so the server served that one's weights under this version's name; give "
        "each version a name of its own, and load its own checkpoint under it"
    )


def _length(turn: TurnTokens) -> tuple[int, bytes]:
    return (len(turn.prompt_token_ids) + len(turn.completion_token_ids)) // 4, turn.completion_token_ids


def _differences(model: nn.Module, turns: Sequence[TurnTokens], temperature: float | None = None) -> Tensor:
    """Return recorded − own log-prob of each sampled token [T], all turns together."""
    return torch.cat(
        [
            torch.tensor(list(decode_logprobs(turn.logprobs))) - _learner_logprobs(model, turn, temperature)
            for turn in turns
        ]
    )


@torch.no_grad()
def _learner_logprobs(model: nn.Module, turn: TurnTokens, temperature: float | None = None) -> Tensor:
    """Return the log-prob of each sampled token [T], at the turn's temperature or at another one."""
    prompt, completion = decode_token_ids(turn.prompt_token_ids), decode_token_ids(turn.completion_token_ids)
    device = next(model.parameters()).device
    whole_1_T = torch.tensor([[*prompt, *completion]], device=device)
    hidden = trunk(model, whole_1_T[:, :-1])[0, len(prompt) - 1 :]
    logits_T_V = head(model, hidden) / (temperature or (turn.temperature if turn.logprob_mode == "processed" else 1.0))
    logprobs_T_V = torch.log_softmax(logits_T_V, dim=-1)
    return logprobs_T_V.gather(1, whole_1_T[0, len(prompt) :, None])[:, 0].cpu()
