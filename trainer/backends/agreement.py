"""How far a source's recorded log-probs are from the model's own, and what is said if that is too far. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

ROUNDING = 0.01
"""Nats by which two kernels may differ in one token's log-prob."""
LEAST_KEPT = 2.3
"""A server that leaves tokens out keeps more than a tenth of the probability: exp(−2.3)."""
UNKNOWN_CAUSE = (
    "the server may have served other weights than this version, read another prompt (a chat template of its own), cut "
    "the distribution (top_p, top_k), or reported log-probs of another kind; ask it for the same prompt and compare"
)


@dataclass(frozen=True, slots=True)
class Agreement:
    """How far a source is from the model, over the turns that were computed again."""

    source: str
    version: int
    difference: float
    """Mean of |recorded − own log-prob|, in nats a token."""
    tokens: int


def describe_disagreement(agreement: Agreement, cause: str, *, most: float) -> str:
    """Say who differs, by how much, why that may be, and what to do."""
    return (
        f"turns that producer {agreement.source or '(none)'!r} recorded from version {agreement.version} have "
        f"log-probs that differ from the model's own by {agreement.difference:.3g} a token (mean of {agreement.tokens} "
        f"tokens, at most {most:g} is taken): {cause}. Nothing was trained. `trainer: "
        "most_difference:` sets the bound, 0 none"
    )


def name_temperature(temperature: float) -> str:
    """Say that the turns agree at a temperature that their record does not name."""
    return (
        f"they agree at temperature {temperature:g}, so the server sampled at that one, as vLLM does by a model's "
        "generation_config.json unless it runs with `--generation-config vllm`"
    )


def name_version(version: int) -> str:
    """Say that the turns agree with another version than their record names."""
    return (
        f"they agree with version {version}, so the server served that one's weights under this version's name; give "
        "each version a name of its own, and load its own checkpoint under it"
    )


def name_cut(temperature: float) -> str:
    """Say that tokens were left out before one was sampled."""
    return (
        f"at temperature {temperature:g} each is as high as the model's own or higher, so the server left tokens out "
        "(top_p, top_k, min_p or a grammar), as vLLM does by a model's generation_config.json unless it runs with "
        "`--generation-config vllm`"
    )


def is_cut(differences: Sequence[float]) -> bool:
    """Return whether recorded − own log-probs are those of a server that left tokens out: what is left only gains."""
    return min(differences) >= -ROUNDING and ROUNDING < max(differences) <= LEAST_KEPT
