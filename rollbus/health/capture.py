"""Run an agent once and look at what was recorded: by which hook, with which verdict, and what to add.

Nothing is sent: the events stay in memory. The agent runs in one episode, as in `with rb.episode(…)`.
"""

import asyncio
import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from rollbus.producers import MemorySink, init
from rollbus.producers.integrations.instrument import instrument
from rollbus.schemas.records.events import TurnRecorded

FLUSH_S = 30.0
_IDS = "serve the model with an endpoint that returns token ids: rollbus' own or vLLM"
ADVICE: Mapping[str, str] = {
    "no_logprobs": _IDS,
    "logprobs_refused": _IDS,
    "missing_logprobs": "the server left log-probs out; ask it for one choice without special sampling",
    "no_token_ids": _IDS,
    "no_prompt_token_ids": "the server returns no ids of the prompt; rollbus' own endpoint and newer vLLM do",
    "no_usage": "let the server return its token counts (`stream_options: include_usage`)",
    "length_mismatch": "ids, log-probs and the server's count disagree: look at the server's version",
    "media_input": "images and sounds cannot be trained: the ids do not hold what the model saw",
    "echo": "ask without `echo`",
    "truncated_stream": "read the stream to its end",
    "abandoned": "read the stream to its end",
    "call_failed": "the call failed in the program itself",
    "call_timed_out": "the call timed out in the program itself",
    "call_cancelled": "the program cancelled the call",
}
"""What to do, by the verdict on a turn."""
_NOT_CAPTURED = "read the answer by the client, or report it with episode.turn(…)"
NOT_CAPTURED: Mapping[str, str] = {
    "langchain": "use a ChatOpenAI, or report the answer with episode.turn(…)",
    "llama-index": "use an OpenAI or OpenAILike LLM, or report the answer with episode.turn(…)",
    "google-adk": "use LiteLlm over an OpenAI endpoint, or report the answer with episode.turn(…)",
    "openai-agents": "use an OpenAIChatCompletionsModel, or report the answer with episode.turn(…)",
    "litellm": "use an `openai/` model, or a provider that returns token ids and log-probs",
}
"""What to do about a call whose tokens no client below saw, by the hook that saw the call."""
UNSEEN: Mapping[str, str] = {
    "anthropic": "anthropic",
    "botocore": "boto3",
    "cohere": "cohere",
    "google.genai": "google-genai",
    "groq": "groq",
    "huggingface_hub.inference._client": "huggingface_hub",
    "mistralai": "mistralai",
    "ollama": "ollama",
    "vllm": "vllm",
}
"""Libraries that call models and have no hook: the module that shows that one is used, and its name."""
_BROUGHT_BY: Mapping[str, str] = {"google.genai": "google.adk"}
"""Those that another framework imports for itself."""


@dataclass(slots=True)
class Examination:
    """What one run of an agent shows."""

    turns: list[tuple[TurnRecorded, str]] = field(default_factory=list)
    """Each with the hook that saw the call."""
    error: BaseException | None = None
    """Of the agent."""
    patched: tuple[str, ...] = ()
    notes: list[str] = field(default_factory=list)
    """What else is missing, and what to add."""

    @property
    def is_whole(self) -> bool:
        """Whether every call that is known of can be trained."""
        return bool(self.turns) and not self.notes and all(turn.trainable for turn, _ in self.turns)


def examine_capture(agent: Callable[[], Any]) -> Examination:
    """Run the agent in one episode; what it raises is kept."""
    found = Examination()
    recorder = init(sink=MemorySink(), producer="doctor")
    recorder.outbox.on_turn = lambda turn, hook: found.turns.append((turn, hook))
    patches = instrument(recorder)
    try:
        with recorder.episode(task="doctor"):
            result = agent()
            if inspect.isawaitable(result):
                asyncio.run(_wait(result))
    except SystemExit as error:  # a program that ends as its own process
        found.error = error if error.code else None
    except Exception as error:  # the user's own program
        found.error = error
    recorder.close(FLUSH_S)
    found.patched = patches.names
    patches.undo()
    found.notes = [f"{name} could not be patched: {error}" for name, error in patches.failed.items()]
    found.notes += [f"{name} {version} is newer than was tried" for name, version in patches.untried.items()]
    found.notes += _describe_missed(recorder.counters)
    for module, name in UNSEEN.items():
        if module in sys.modules and _BROUGHT_BY.get(module) not in sys.modules:
            found.notes.append(f"{name} is imported, and has no hook: report its answers with episode.turn(…)")
    return found


async def _wait(result: Any) -> Any:
    return await result


def _describe_missed(counters: Mapping[str, int]) -> list[str]:
    notes = []
    if count := counters.get("calls_outside_episode"):
        notes.append(f"{count} calls were outside of the episode: start what makes them with rb.bind(…)")
    if count := counters.get("turns_suppressed"):
        notes.append(f"{count} answers came after the episode's end: wait for them within it")
    notes += [f"{count} failures of ours: {name}" for name, count in counters.items() if name.startswith("hook_errors")]
    return notes


def advise(turn: TurnRecorded, hook: str) -> str:
    """Return what to add, so that a turn can be trained; nothing if it can."""
    reason = turn.untrainable_reason
    if reason is None:
        return ""
    if reason == "not_captured" or (hook == "litellm" and ADVICE.get(reason) == _IDS):
        return NOT_CAPTURED.get(hook, _NOT_CAPTURED)
    return ADVICE.get(reason, "see docs/capture.md")
