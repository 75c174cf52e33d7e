"""How far a source's recorded log-probs are from the model's own, and what is said if that is too far. Pure."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Agreement:
    """How far a source is from the model, over the turns that were computed again."""

    source: str
    version: int
    difference: float
    """Mean of |recorded − own log-prob|, in nats a token."""
    tokens: int


def describe_disagreement(agreement: Agreement, temperature: float | None, *, most: float) -> str:
    """Say who differs, by how much, why that may be, and what to do.

    `temperature` is the one at which they would agree, if there is one and it was looked for.
    """
    cause = (
        f"they agree at temperature {temperature:g}, so the server sampled at that one, as vLLM does by a model's "
        "generation_config.json unless it runs with `--generation-config vllm`"
        if temperature is not None
        else "the server may have served other weights than this version, cut the distribution (top_p, top_k), or "
        "reported log-probs of another kind; ask it for the same prompt and compare"
    )
    return (
        f"turns that producer {agreement.source or '(none)'!r} recorded from version {agreement.version} have "
        f"log-probs that differ from the model's own by {agreement.difference:.3g} a token (mean of {agreement.tokens} "
        f"tokens, at most {most:g} is taken): {cause}. Nothing was trained. `trainer: "
        "most_difference:` sets the bound, 0 none"
    )
