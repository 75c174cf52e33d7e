"""How an answer was sampled: what the request said, and what it would have to say for that to be certain.

A server fills in what a request leaves out from settings that the answer does not show: vLLM and SGLang from the
model's `generation_config.json`, llama.cpp from options of its own. Log-probs are only worth training on if the request
named all of `NEUTRAL`, and if it constrained nothing: where a grammar or a bias chooses among the tokens, the learner,
which has neither, gives the same tokens other log-probs.
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
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
}
"""What servers take from elsewhere where a request does not name it, with the value that changes no distribution."""
STANDARD = ("temperature", "top_p", "presence_penalty", "frequency_penalty")
"""Those of the OpenAI API; the others are extensions that some servers refuse."""
STANDARD_SETTINGS, EXTENSIONS = "sampling", "sampling_extensions"
"""Names under which a refusal of them is remembered."""
SAMPLING_UNKNOWN, SAMPLING_REFUSED, SAMPLING_CONSTRAINED = (
    "sampling_unknown",
    "sampling_refused",
    "sampling_constrained",
)
CONSTRAINTS = (
    *("logit_bias", "allowed_token_ids", "bad_words", "min_tokens", "thinking_token_budget", "use_beam_search"),
    *("structured_outputs", "guided_json", "guided_regex", "guided_choice", "guided_grammar", "structural_tag"),
    *("regex", "ebnf", "json_schema", "grammar", "logits_processors", "custom_logit_processor"),
)
"""By which vLLM, SGLang or llama.cpp leave tokens out or prefer some, other than by `response_format` and a forced
call of a tool."""
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


def sampling_problem(request: Mapping[str, Any], fields: Mapping[str, Any], refused: Collection[str]) -> str | None:
    """Say why nobody knows from which distribution a turn was sampled; None where its request and fields tell."""
    if _is_constrained(_flat(request)):
        return SAMPLING_CONSTRAINED
    if all(fields[name] is not None for name in NEUTRAL):
        return None
    return SAMPLING_REFUSED if {STANDARD_SETTINGS, EXTENSIONS} & set(refused) else SAMPLING_UNKNOWN


def _is_constrained(flat_request: Mapping[str, Any]) -> bool:
    """Say whether the request lets only some tokens through, or prefers some."""
    response_format = flat_request.get("response_format")
    if isinstance(response_format, Mapping) and response_format.get("type") not in (None, "text"):
        return True
    choices = (flat_request.get("tool_choice"), flat_request.get("function_call"))
    if any(choice == "required" or isinstance(choice, Mapping) for choice in choices):
        return True
    return any(flat_request.get(name) for name in CONSTRAINTS)


def _flat(request: Mapping[str, Any]) -> Mapping[str, Any]:
    extra = request.get("extra_body")
    return {**request, **extra} if isinstance(extra, Mapping) else request
