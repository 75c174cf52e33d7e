"""OpenAI's request and answer shapes: what the endpoint accepts, what it refuses by name, what it answers.

Pure: no server, no threads. Parameters that would change what is sampled and are not supported are refused rather
than ignored, because the answer's log-probs become training data.
"""

from __future__ import annotations

from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from rollbus.trainer.service.sampler import Generation
from rollbus.trainer.service.sampling import LogprobsMode, SamplingParameters

RequestT = TypeVar("RequestT", bound=BaseModel)


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
    """What chat and plain completions share. Unknown fields are let through: clients send many that do nothing."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    model: str
    n: int = Field(default=1, ge=1, le=128)
    temperature: float = Field(default=1.0, ge=0, le=2)
    top_p: float = Field(default=1.0, gt=0, le=1)
    max_tokens: int | None = Field(default=None, ge=1)
    stop: tuple[str, ...] = Field(default=(), max_length=16)
    seed: int | None = None
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

    @field_validator("stop", mode="before")
    @classmethod
    def _one_or_many(cls, value: Any) -> Any:
        if value is None:
            return ()
        return (value,) if isinstance(value, str) else value

    @field_validator("n", "temperature", "top_p", mode="before")
    @classmethod
    def _null_is_default(cls, value: Any, info: Any) -> Any:
        return cls.model_fields[info.field_name].default if value is None else value

    @field_validator("response_format")
    @classmethod
    def _plain_text(cls, value: dict[str, Any] | None) -> dict[str, Any] | None:
        if value is not None and value.get("type") != "text":
            raise ValueError("only {'type': 'text'} is supported")
        return value

    @property
    def wanted_tokens(self) -> int | None:
        return self.max_tokens

    def sampling(self, *, max_tokens: int, seed: int, top_logprobs: int) -> SamplingParameters:
        return SamplingParameters(
            max_tokens=max_tokens,
            temperature=self.temperature,
            top_p=self.top_p,
            seed=seed,
            stop=self.stop,
            top_logprobs=top_logprobs,
            ignore_eos=self.ignore_eos,
        )


class ChatRequest(_SamplingRequest):
    messages: list[dict[str, Any]] = Field(min_length=1)
    max_completion_tokens: int | None = Field(default=None, ge=1)
    logprobs: bool | None = False
    top_logprobs: int | None = Field(default=None, ge=0, le=20)
    tools: list[dict[str, Any]] | None = None
    tool_choice: Literal["auto", "none"] | None = None

    @field_validator("messages")
    @classmethod
    def _text_only(cls, messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [_plain_message(index, message) for index, message in enumerate(messages)]

    @property
    def wanted_tokens(self) -> int | None:
        return self.max_completion_tokens or self.max_tokens

    @property
    def wants_logprobs(self) -> bool:
        return bool(self.logprobs)

    @property
    def alternatives(self) -> int:
        return (self.top_logprobs or 0) if self.logprobs else 0


class CompletionRequest(_SamplingRequest):
    prompt: str | list[int]
    logprobs: int | None = Field(default=None, ge=0, le=20)
    echo: Literal[False] = False
    max_tokens: int | None = Field(default=16, ge=1)

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
        problem = f"{param}: {first['msg']}" if param else f"the request body: {first['msg']}"
        raise RequestError(400, problem, param=param) from error


def chat_choice(request: ChatRequest, index: int, answer: Generation, tokenizer: Any) -> dict[str, Any]:
    choice: dict[str, Any] = {
        "index": index,
        "message": {"role": "assistant", "content": answer.text},
        "finish_reason": answer.finish_reason,
        "stop_reason": None,
        "logprobs": None,
    }
    if request.wants_logprobs:
        choice["logprobs"] = {"content": token_logprobs(request, answer, tokenizer), "refusal": None}
    if request.return_token_ids or request.wants_logprobs:
        choice["token_ids"] = list(answer.token_ids)
    return choice


def completion_choice(request: CompletionRequest, index: int, answer: Generation, tokenizer: Any) -> dict[str, Any]:
    choice: dict[str, Any] = {
        "index": index,
        "text": answer.text,
        "finish_reason": answer.finish_reason,
        "logprobs": None,
    }
    if request.wants_logprobs:
        entries = token_logprobs(request, answer, tokenizer)
        choice["logprobs"] = {
            "tokens": [entry["token"] for entry in entries],
            "token_logprobs": [entry["logprob"] for entry in entries],
            "top_logprobs": [{one["token"]: one["logprob"] for one in entry["top_logprobs"]} for entry in entries],
            "text_offset": [],
        }
    if request.return_token_ids or request.wants_logprobs:
        choice["token_ids"] = list(answer.token_ids)
    return choice


def token_logprobs(request: _SamplingRequest, answer: Generation, tokenizer: Any) -> list[dict[str, Any]]:
    top = answer.top_logprobs or ((),) * len(answer.token_ids)
    as_ids = request.return_tokens_as_token_ids
    return [
        {
            **_token(token_id, logprob, tokenizer, as_ids=as_ids),
            "top_logprobs": [_token(one, value, tokenizer, as_ids=as_ids) for one, value in alternatives],
        }
        for token_id, logprob, alternatives in zip(answer.token_ids, answer.logprobs, top, strict=True)
    ]


def facts(model: str, *, seed: int, version: int, logprobs_mode: LogprobsMode) -> dict[str, Any]:
    """How the answer was made, for whoever records it."""
    return {"model": model, "policy_version": version, "logprobs_mode": logprobs_mode, "seed": seed}


def usage(prompt_tokens: int, completion_tokens: int) -> dict[str, int]:
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
    }


def _token(token_id: int, logprob: float, tokenizer: Any, *, as_ids: bool) -> dict[str, Any]:
    text: str = tokenizer.decode([token_id])
    return {
        "token": f"token_id:{token_id}" if as_ids else text,
        "logprob": logprob,
        "bytes": list(text.encode("utf-8")),
    }


def _plain_message(index: int, message: dict[str, Any]) -> dict[str, Any]:
    """Content as one string; parts other than text are refused."""
    role, content = message.get("role"), message.get("content")
    if not isinstance(role, str) or not role:
        raise ValueError(f"message {index} has no role")
    if content is None or isinstance(content, str):
        return {**message, "content": content}
    if not isinstance(content, list) or any(part.get("type") != "text" for part in content):
        raise ValueError(f"the content of message {index} must be text; this model reads no images or audio")
    return {**message, "content": "".join(part["text"] for part in content)}
