"""What to change, so that turns can be trained, by the verdict on them."""

from collections.abc import Mapping

from rollbus.producers.turns.sampling_settings import NEUTRAL

IN_EPISODE = "within `with rb.episode(task=…)`; `rb.bind(…)` takes the episode along into a thread or a pool"
"""Where a call must be made to be recorded."""
_IDS = "serve the model with an endpoint that returns token ids and log-probs: rollbus' own or vLLM"
_SAMPLING = f"name {', '.join(NEUTRAL)} in the request"
ADVICE: Mapping[str, str] = {
    "no_logprobs": _IDS,
    "logprobs_refused": _IDS,
    "missing_logprobs": "some log-probs of the server are missing, not finite or above 0: ask without special sampling",
    "no_choice": "the server gave fewer answers than `n` asks for: ask for one",
    "no_token_ids": _IDS,
    "no_prompt_token_ids": "the server returns no ids of the prompt; rollbus' own endpoint and newer vLLM do",
    "no_usage": "let the server return its token counts (`stream_options: include_usage`)",
    "length_mismatch": "ids, log-probs and the server's count disagree: look at the server's version",
    "sampling_unknown": f"the server may sample in its own way: {_SAMPLING}, or let the recorder do it (not `passive`)",
    "sampling_refused": "the server refuses to be told how to sample: rollbus' own endpoint and vLLM do not",
    "sampling_constrained": "a grammar, a forced call of a tool or a bias chose among the tokens: ask without it",
    "media_input": "images and sounds cannot be trained: the ids do not hold what the model saw",
    "echo": "ask without `echo`",
    "truncated_stream": "read the stream to its end",
    "abandoned": "read the stream to its end",
    "call_failed": "the server refused the call or was not there, as the agent's own error says: is its address right?",
    "call_timed_out": "the server did not answer in the agent's own time-out: is it busy, or is that too short?",
    "call_cancelled": "the program cancelled the call",
    "masked_text": "`redact` changed a text, which the ids would spell out: mask before the model sees it",
    "redaction_failed": "the recorder's `redact` failed: mend it",
    "tokens_withheld": "take `tokens` out of what the recorder withholds",
}
_NOT_CAPTURED = "read the answer by the client, or report it with episode.turn(…)"
NOT_CAPTURED: Mapping[str, str] = {
    "langchain": "use a ChatOpenAI, or report the answer with episode.turn(…)",
    "llama-index": "use an OpenAI or OpenAILike LLM, or report the answer with episode.turn(…)",
    "google-adk": "use LiteLlm over an OpenAI endpoint, or report the answer with episode.turn(…)",
    "openai-agents": "use an OpenAIChatCompletionsModel, or report the answer with episode.turn(…)",
    "litellm": "use an `openai/` model, or a provider that returns token ids and log-probs",
}
"""What to change about a call whose tokens no client below saw, by the hook that saw the call."""


def advise(reason: str | None, hook: str) -> str:
    """Return what to change about turns that have this reason, by the hook that saw them; nothing without a reason."""
    if reason is None:
        return ""
    if reason == "not_captured" or (hook == "litellm" and ADVICE.get(reason) == _IDS):
        return NOT_CAPTURED.get(hook, _NOT_CAPTURED)
    return ADVICE.get(reason, "see docs/capture.md")
