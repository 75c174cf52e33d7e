"""How an answer was sampled: what the request said, and what it would have to say for that to be certain.

A server fills in what a request leaves out from settings that the answer does not show: vLLM and SGLang from the
model's `generation_config.json`, llama.cpp from options of its own. Log-probs are only worth training on if the request
named all of `NEUTRAL`.
"""

from collections.abc import Collection, Mapping
from typing import Any

from rollbus.producers.turns.answer import count_of, number_of

NEUTRAL: Mapping[str, float] = {
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": -1,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
}
"""What servers take from elsewhere where a request does not name it, with the value that changes no distribution."""
STANDARD = ("temperature", "top_p")
"""Those of the OpenAI API; the others are extensions that some servers refuse."""
STANDARD_SETTINGS, EXTENSIONS = "sampling", "sampling_extensions"
"""Names under which a refusal of them is remembered."""
SAMPLING_UNKNOWN, SAMPLING_REFUSED = "sampling_unknown", "sampling_refused"
_NUMBERS = ("temperature", "top_p", "frequency_penalty", "presence_penalty", "min_p", "repetition_penalty")


def neutral_settings(request: Mapping[str, Any], refused: Collection[str] = ()) -> dict[str, float]:
    """Return the settings that a request leaves out, at their neutral values; none of what the server has `refused`."""
    flat_request = _flat(request)
    return {
        name: value
        for name, value in NEUTRAL.items()
        if number_of(flat_request.get(name)) is None
        and (STANDARD_SETTINGS if name in STANDARD else EXTENSIONS) not in refused
    }


def settings_sent(request: Mapping[str, Any]) -> dict[str, Any]:
    """Return those settings that a request names."""
    flat_request = _flat(request)
    return {name: flat_request[name] for name in NEUTRAL if name in flat_request}


def sampling_of(request: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a turn that say how it was sampled, as far as its request does."""
    flat_request = _flat(request)
    fields: dict[str, Any] = {name: number_of(flat_request.get(name)) for name in _NUMBERS}
    fields["seed"] = count_of(flat_request.get("seed"))
    fields["top_k"] = count_of(flat_request.get("top_k"))
    fields["max_tokens"] = count_of(flat_request.get("max_completion_tokens")) or count_of(
        flat_request.get("max_tokens")
    )
    return fields


def sampling_problem(fields: Mapping[str, Any], refused: Collection[str]) -> str | None:
    """Say why nobody knows how a turn was sampled; None where its fields tell."""
    if all(fields[name] is not None for name in NEUTRAL):
        return None
    return SAMPLING_REFUSED if {STANDARD_SETTINGS, EXTENSIONS} & set(refused) else SAMPLING_UNKNOWN


def _flat(request: Mapping[str, Any]) -> Mapping[str, Any]:
    extra = request.get("extra_body")
    return {**request, **extra} if isinstance(extra, Mapping) else request
