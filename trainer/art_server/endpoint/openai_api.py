"""OpenAI's requests: what the endpoint accepts, and what it refuses by name.

Pure: no server, no threads. Parameters that would change what is sampled and are not supported are refused rather
than ignored, because the answer's log-probs become training data.
"""

from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from rollbus.trainer.art_server.sampler.requests import SamplingParameters

RequestT = TypeVar("RequestT", bound=BaseModel)

NOT_SUPPORTED = (
    *("add_special_tokens", "allowed_token_ids", "audio", "bad_words", "chat_template"),
    *("chat_template_kwargs", "continue_final_message", "documents", "function_call", "functions", "guided_choice"),
    *("guided_grammar", "guided_json", "guided_regex", "include_stop_str_in_output"),
    *("logits_processors", "min_tokens", "prompt_logprobs", "stop_token_ids", "structured_outputs", "suffix"),
    *("truncate_prompt_tokens", "use_beam_search"),
    # OpenAI's own, newer
    *("prediction", "reasoning", "reasoning_effort", "thinking", "verbosity", "web_search_options"),
    # of SGLang, llama.cpp, Ollama and text-generation-webui
    *("custom_logit_processor", "dynatemp_range", "ebnf", "enable_thinking", "epsilon_cutoff", "eta_cutoff", "grammar"),
    *("json_schema", "lora_path", "mirostat", "no_repeat_ngram_size", "penalty_alpha", "regex", "samplers"),
    *("smoothing_factor", "thinking_budget", "top_a", "top_n_sigma", "dry_multiplier", "xtc_probability"),
)
"""Each would change the prompt, what is sampled or what is answered, unless its value is empty, false or 0."""
NEUTRAL_AT_1 = (
    *("best_of", "encoder_repetition_penalty", "length_penalty", "num_beams", "repeat_penalty", "tfs_z", "typical_p"),
)
"""The same, unless they are 1."""
ALWAYS_ON = ("add_generation_prompt", "do_sample", "enable_thinking", "skip_special_tokens")
"""The same, if they are switched off."""


class RequestError(Exception):
    """An answer with OpenAI's error shape."""

    def __init__(self, status: int, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.param = param
        self.code = code

    def body(self) -> dict[str, Any]:
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        return {"error": {"message": str(self), "type": kind, "param": self.param, "code": self.code}}


class StreamOptions(BaseModel):
    include_usage: bool = False


class _SamplingRequest(BaseModel):
    """What chat and plain completions share. Unknown fields are let through: clients send many without effect."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    model: str
    n: int = Field(default=1, ge=1, le=128)
    temperature: float = Field(default=1.0, ge=0, le=2)
    top_p: float = Field(default=1.0, gt=0, le=1)
    max_tokens: int | None = Field(default=None, ge=1)
    stop: tuple[str, ...] = Field(default=(), max_length=16)
    seed: int | None = Field(default=None, ge=-(2**63), lt=2**63)
    """Within what a record can hold."""
    stream: bool = False
    stream_options: StreamOptions | None = None
    ignore_eos: bool = False
    return_token_ids: bool = False
    return_tokens_as_token_ids: bool = True
    presence_penalty: float | None = Field(default=None, ge=0, le=0)
    frequency_penalty: float | None = Field(default=None, ge=0, le=0)
    logit_bias: dict[str, float] | None = Field(default=None, max_length=0)
    top_k: int | None = Field(default=None, le=0)
    min_p: float | None = Field(default=None, ge=0, le=0)
    repetition_penalty: float | None = Field(default=None, ge=1, le=1)
    response_format: dict[str, Any] | None = None

    @model_validator(mode="before")
    @classmethod
    def _refuse_unsupported(cls, body: Any) -> Any:
        """Refuse what is not there, and take null as left out."""
        if not isinstance(body, dict):
            return body
        for name in (
            *(name for name in NOT_SUPPORTED if body.get(name)),
            *(name for name in NEUTRAL_AT_1 if body.get(name, 1) not in (1, None)),
            *(name for name in ALWAYS_ON if body.get(name) is False),
        ):
            raise ValueError(f"{name} is not supported by this server; leave it out")
        return {name: value for name, value in body.items() if value is not None or name == "max_tokens"}

    @field_validator("stop", mode="before")
    @classmethod
    def _one_or_many(cls, value: Any) -> Any:
        return (value,) if isinstance(value, str) else value

    @field_validator("stop")
    @classmethod
    def _none_is_empty(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if not all(value):
            raise ValueError("an empty string occurs everywhere in a text; leave it out")
        return value

    @field_validator("response_format")
    @classmethod
    def _plain_text(cls, value: dict[str, Any] | None) -> dict[str, Any] | None:
        if value is not None and value.get("type") != "text":
            raise ValueError("only {'type': 'text'} is supported")
        return value

    @property
    def wanted_tokens(self) -> int | None:
        return self.max_tokens

    @property
    def scores_prompt(self) -> bool:
        return False

    def sampling(self, *, max_tokens: int, seed: int, top_logprobs: int) -> SamplingParameters:
        return SamplingParameters(
            max_tokens=max_tokens,
            temperature=self.temperature,
            top_p=self.top_p,
            seed=seed,
            stop=self.stop,
            top_logprobs=top_logprobs,
            ignore_eos=self.ignore_eos,
            scores_prompt=self.scores_prompt,
        )


class Function(BaseModel):
    model_config = ConfigDict(extra="allow", frozen=True)

    name: str = Field(min_length=1)


class RequestedTool(BaseModel):
    model_config = ConfigDict(extra="allow", frozen=True)

    type: Literal["function"]
    function: Function


class ChatRequest(_SamplingRequest):
    messages: list[dict[str, Any]] = Field(min_length=1)
    max_completion_tokens: int | None = Field(default=None, ge=1)
    logprobs: bool | None = False
    top_logprobs: int | None = Field(default=None, ge=0, le=20)
    tools: list[RequestedTool] | None = None
    tool_choice: Literal["auto", "none"] | None = None
    """Choosing freely or not at all: forcing a call would need constrained decoding, whose log-probs do not train."""

    @field_validator("messages")
    @classmethod
    def _text_only(cls, messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [_plain_message(index, message) for index, message in enumerate(messages)]

    @property
    def wanted_tokens(self) -> int | None:
        return self.max_completion_tokens or self.max_tokens

    @property
    def offered_tools(self) -> list[dict[str, Any]] | None:
        """Tools in OpenAI's form; None if the model must not call any."""
        if not self.tools or self.tool_choice == "none":
            return None
        return [tool.model_dump(exclude_unset=True) for tool in self.tools]

    @property
    def wants_logprobs(self) -> bool:
        return bool(self.logprobs)

    @property
    def alternatives(self) -> int:
        return (self.top_logprobs or 0) if self.logprobs else 0


class CompletionRequest(_SamplingRequest):
    prompt: str | list[int] | list[str] | list[list[int]]
    """One prompt, or several; each is answered `n` times."""
    logprobs: int | None = Field(default=None, ge=0, le=20)
    echo: bool = False
    """With `max_tokens: 0` and `logprobs`: sample nothing, and give the log-prob of each prompt token."""
    max_tokens: int | None = Field(default=16, ge=0)

    @model_validator(mode="after")
    def _echoes_to_score(self) -> "CompletionRequest":
        scores = self.max_tokens == 0 and self.logprobs == 0 and self.n == 1 and not self.stream
        if self.echo != (self.max_tokens == 0) or (self.echo and not scores):
            raise ValueError(
                "echo is answered with max_tokens 0 and logprobs 0, n 1 and without stream: it scores a prompt"
            )
        return self

    @property
    def prompts(self) -> list[str] | list[list[int]]:
        """Every prompt, as text or as token ids."""
        prompt: Any = self.prompt
        several = isinstance(prompt, list) and prompt and not isinstance(prompt[0], int)
        return prompt if several else [prompt]

    @property
    def wanted_tokens(self) -> int | None:
        return 1 if self.echo else self.max_tokens  # the sampler samples one, which is left out of the answer

    @property
    def scores_prompt(self) -> bool:
        return self.echo

    @property
    def wants_logprobs(self) -> bool:
        return self.logprobs is not None

    @property
    def alternatives(self) -> int:
        return self.logprobs or 0


def parse(kind: type[RequestT], body: bytes) -> RequestT:
    """RequestError 400 naming the first field that is wrong."""
    try:
        return kind.model_validate_json(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        param = ".".join(str(part) for part in first["loc"]) or None
        if first["type"] == "value_error" and not param:
            raise RequestError(400, str(first["ctx"]["error"]), param=str(first["ctx"]["error"]).split()[0]) from error
        message = first["msg"].removeprefix("Value error, ")
        problem = f"{param}: {message}" if param else f"the request body: {message}"
        raise RequestError(400, problem, param=param) from error


def _plain_message(index: int, message: dict[str, Any]) -> dict[str, Any]:
    """Content as one string; parts other than text are refused."""
    role, content = message.get("role"), message.get("content")
    if not isinstance(role, str) or not role:
        raise ValueError(f"message {index} has no role")
    if content is None or isinstance(content, str):
        return {**message, "content": content}
    if not isinstance(content, list) or any(map(_is_no_text, content)):
        raise ValueError(
            f"the content of message {index} must be a string, or parts as {{'type': 'text', 'text': '…'}}; this model "
            "reads no images or audio"
        )
    return {**message, "content": "".join(part["text"] for part in content)}


def _is_no_text(part: Any) -> bool:
    return not isinstance(part, dict) or part.get("type") != "text" or not isinstance(part.get("text"), str)
