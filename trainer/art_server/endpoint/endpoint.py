"""The OpenAI-compatible HTTP endpoint of one model and all its loaded versions.

    POST /v1/chat/completions, /v1/completions    GET /v1/models, /v1/models/NAME, /health, /metrics

A request for `name` is answered by the serving version, one for `name@7` by version 7, and the answer's `model` says
which. With progressive delivery a share of the episodes, named by the header `rollbus-episode`, gets the canary under
the bare name. The endpoint runs in its own thread, so training never delays it by more than the processor does.
"""

import asyncio
import logging
import random
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar
from urllib.parse import unquote

from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from rollbus.runtime.http import PRIORITY_HEADER
from rollbus.runtime.http.guard import (
    Door,
    ErrorAnswer,
    FindPrincipal,
    RefusedError,
    RequestHead,
    as_json,
    names_of,
    needs_record,
    token_admits,
)
from rollbus.schemas.errors import RollbusError
from rollbus.schemas.routing import Router
from rollbus.trainer.art_server.endpoint.answer_stream import DONE, AnswerStream, event
from rollbus.trainer.art_server.endpoint.choices import Choices
from rollbus.trainer.art_server.endpoint.openai_answers import describe_origin, make_choice, usage
from rollbus.trainer.art_server.endpoint.openai_api import ChatRequest, CompletionRequest, RequestError, parse
from rollbus.trainer.art_server.endpoint.tokenizer import render_chat, renders_tools
from rollbus.trainer.art_server.sampler.requests import Generation, TokenSampler, UnknownVersionError

logger = logging.getLogger(__name__)

T = TypeVar("T")

VERSION = re.compile("[0-9]{1,18}")
PRIORITY = re.compile("-?[0-9]{1,9}")
MAX_BODY_BYTES = 32 << 20
"""Many times the longest context of today's models."""
MAX_CHOICES = 4096
"""Answers to one request: each waits in memory for its turn."""
LONG_BODY_BYTES = 16 << 10
"""Longer bodies are parsed in another thread: each megabyte takes more than half a second,
and other answers would wait."""
LONG_ANSWER_TOKENS = 2048
"""Answers with more log-probs are written in another thread, for the same reason: so many take a tenth of a second."""
EPISODE_HEADER = "rollbus-episode"
"""Percent-encoded, as the recorder's `headers` has it."""
CLIENT_GONE = 499
"""For an answer without a client; as nginx has it."""


@dataclass(slots=True)
class ServedModel:
    """What the endpoint serves; promoting a version changes `serving`."""

    name: str
    sampler: TokenSampler
    tokenizer: Any
    serving: int
    find_version: Callable[[int], bool] = lambda version: False
    """Load a version that is not loaded but still on disk; False if there is none."""
    seeds: random.Random = field(default_factory=random.SystemRandom)
    """Draws the seed of requests that bring none."""
    router: Router = field(default_factory=Router)
    """Who gets the canary."""
    created_s: int = field(default_factory=lambda: int(time.time()))
    requests: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0

    @property
    def canary(self) -> int | None:
        """The version that has a share of the episodes; None if what serves here is not what was decided to serve."""
        decision = self.router.decision(self.name)
        return decision.canary if decision is not None and decision.serving == self.serving else None

    def resolve(self, model: str, episode_id: str | None = None) -> int:
        """The version that answers an episode's requests for `model`; RequestError 404 if none does."""
        name, at, number = model.partition("@")
        if name == self.name and not at:
            canary = None if episode_id is None else self.canary
            is_drawn = canary is not None and self.router.choose(name, episode_id or "") == canary
            return canary if is_drawn and canary is not None else self.serving
        if name == self.name and VERSION.fullmatch(number):
            return int(number)
        raise self.unknown(model)

    def unknown(self, model: str) -> RequestError:
        loaded = ", ".join(f"{self.name}@{version}" for version in self.sampler.loaded())
        return RequestError(
            404,
            f"The model `{model}` does not exist; this server has `{self.name}` and {loaded}.",
            param="model",
            code="model_not_found",
        )


def model_door(api_key: str | None, host: str = "127.0.0.1", find_principal: FindPrincipal | None = None) -> Door:
    """What the endpoint asks of a request: the owner's key, or one of a principal that may record; without a key
    everybody may ask.
    """
    admit = token_admits(api_key, open_paths=("/health",), find_principal=find_principal, needs=needs_record)
    return Door(admit, MAX_BODY_BYTES, names_of(host), describe=_describe)


def build_app(served: ServedModel) -> Starlette:
    endpoint = _Endpoint(served)
    return Starlette(
        routes=[
            Route("/health", endpoint.health),
            Route("/metrics", endpoint.metrics),
            Route("/v1/models", _answering(endpoint.models)),
            Route("/v1/models/{name:path}", _answering(endpoint.model)),
            Route("/v1/chat/completions", _answering(endpoint.chat), methods=["POST"]),
            Route("/v1/completions", _answering(endpoint.completions), methods=["POST"]),
        ],
        exception_handlers={HTTPException: _answer_unknown_path},
    )


class _Endpoint:
    def __init__(self, served: ServedModel) -> None:
        self._served = served
        self._renders_tools = renders_tools(served.tokenizer)
        self._finding: dict[int, asyncio.Future[bool]] = {}
        """Searches for versions that are not loaded, shared by the requests for one."""

    async def health(self, request: Request) -> Response:
        return JSONResponse({"status": "ok", "serving": self._served.serving})

    async def metrics(self, request: Request) -> Response:
        """In Prometheus' text format."""
        served, sampler = self._served, self._served.sampler
        running, waiting = sampler.count_rows()
        values: dict[str, tuple[str, float]] = {
            "requests_total": ("counter", served.requests),
            "prompt_tokens_total": ("counter", served.prompt_tokens),
            "prompt_tokens_reused_total": ("counter", sampler.reused_tokens),
            "completion_tokens_total": ("counter", served.completion_tokens),
            "forward_passes_total": ("counter", sampler.steps),
            "sampled_tokens_total": ("counter", sampler.tokens),
            "completions_running": ("gauge", running),
            "completions_waiting": ("gauge", waiting),
            "serving_version": ("gauge", served.serving),
            "loaded_versions": ("gauge", len(sampler.loaded())),
        }
        lines = [
            f"# TYPE rollbus_service_{name} {kind}\nrollbus_service_{name} {value}\n"
            for name, (kind, value) in values.items()
        ]
        return PlainTextResponse("".join(lines), media_type="text/plain; version=0.0.4")

    async def models(self, request: Request) -> Response:
        served = self._served
        names = [served.name, *(f"{served.name}@{version}" for version in served.sampler.loaded())]
        return JSONResponse({"object": "list", "data": [self._describe_model(name) for name in names]})

    async def model(self, request: Request) -> Response:
        """Describe the model or one version, which is loaded as for a completion."""
        name = request.path_params["name"]
        await self._loaded_version(name, None)
        return JSONResponse(self._describe_model(name))

    async def chat(self, request: Request) -> Response:
        chat_request, prompt = await _parse_aside_if_long(self._chat_prompt, await request.body())
        return await self._respond("chat.completion", request, chat_request, [prompt])

    async def completions(self, request: Request) -> Response:
        completion_request, prompts = await _parse_aside_if_long(self._completion_prompts, await request.body())
        return await self._respond("text_completion", request, completion_request, prompts)

    async def _respond(
        self, kind: str, request: Request, model_request: ChatRequest | CompletionRequest, prompts: list[list[int]]
    ) -> Response:
        """Answer a request, whole or as a stream; the answer is written aside where that takes long."""
        choices = await self._start(model_request, prompts, request.headers)
        if model_request.stream:
            return _stream(self._events(kind, model_request, choices))
        if (answers := await choices.answers(unless=_wait_for_hang_up(request))) is None:
            return Response(status_code=CLIENT_GONE)
        sampled = 0 if model_request.scores_prompt else sum(len(answer.token_ids) for answer in answers)
        self._served.completion_tokens += sampled
        named = sampled * (1 + model_request.alternatives) if model_request.wants_logprobs else 0
        named += sum(len(answer.prompt_logprobs) for answer in answers)

        def write() -> Response:
            return JSONResponse(self._answer(kind, model_request, choices, answers, sampled))

        return await asyncio.to_thread(write) if named > LONG_ANSWER_TOKENS else write()

    def _chat_prompt(self, body: bytes) -> tuple[ChatRequest, list[int]]:
        chat_request = parse(ChatRequest, body)
        if chat_request.offered_tools and not self._renders_tools:
            raise RequestError(
                400,
                "tools: this model's chat template renders none, so it would never see them; give it a "
                "chat_template.jinja that does, or describe them in a message",
                param="tools",
            )
        try:
            return chat_request, render_chat(self._served.tokenizer, chat_request.messages, chat_request.offered_tools)
        except Exception as error:  # the template is the user's, and may raise anything
            raise RequestError(400, f"messages: the chat template refused them: {error}", param="messages") from error

    def _completion_prompts(self, body: bytes) -> tuple[CompletionRequest, list[list[int]]]:
        completion_request, encode = parse(CompletionRequest, body), self._served.tokenizer.encode
        prompts = [
            encode(prompt, add_special_tokens=False) if isinstance(prompt, str) else prompt
            for prompt in completion_request.prompts
        ]
        return completion_request, prompts

    async def _start(
        self, model_request: ChatRequest | CompletionRequest, prompts: list[list[int]], headers: Headers
    ) -> Choices:
        served, episode, priority = self._served, headers.get(EPISODE_HEADER), _read_priority(headers)
        version = await self._loaded_version(model_request.model, None if episode is None else unquote(episode))
        param = "messages" if isinstance(model_request, ChatRequest) else "prompt"
        if not all(prompts):
            raise RequestError(400, f"{param}: a prompt is empty; it needs a token to begin with", param=param)
        if any(min(prompt) < 0 or max(prompt) >= served.sampler.config.vocabulary for prompt in prompts):
            raise RequestError(400, f"{param}: a token id lies outside the vocabulary", param=param)
        if len(prompts) * model_request.n > MAX_CHOICES:
            raise RequestError(
                400,
                f"n: {len(prompts)} prompts, {model_request.n} times each; {MAX_CHOICES} answers are the most",
                param="n",
            )
        if model_request.alternatives and not served.sampler.gives_alternatives:
            raise RequestError(
                400, "top_logprobs: the service that holds this model names no alternatives", param="top_logprobs"
            )
        longest = max(map(len, prompts))
        room = served.sampler.config.max_tokens - longest
        max_tokens = room if model_request.wanted_tokens is None else model_request.wanted_tokens
        if room < 1 or max_tokens > room:
            raise RequestError(
                400,
                f"This model's maximum context length is {served.sampler.config.max_tokens} tokens; the prompt has "
                f"{longest} and {max(max_tokens, 1)} more were asked for. Shorten the prompt or max_tokens.",
                param=param,
                code="context_length_exceeded",
            )
        seed = served.seeds.randrange(2**31) if model_request.seed is None else model_request.seed
        choices = Choices(version, prompts, seed, streaming=model_request.stream)
        parameters = model_request.sampling(max_tokens=max_tokens, seed=seed, top_logprobs=model_request.alternatives)
        parameters = replace(parameters, priority=priority)
        try:
            choices.submit(served.sampler, parameters, model_request.n)
        except UnknownVersionError as error:  # retired between the two lines above
            raise served.unknown(model_request.model) from error
        except RuntimeError as error:
            raise RequestError(503, str(error)) from error
        served.requests += 1
        served.prompt_tokens += choices.prompt_tokens
        return choices

    def _describe_model(self, name: str) -> dict[str, Any]:
        return {
            "id": name,
            "object": "model",
            "created": self._served.created_s,
            "owned_by": "rollbus",
            "max_model_len": self._served.sampler.config.max_tokens,
        }

    async def _loaded_version(self, model: str, episode_id: str | None) -> int:
        """Return the version that answers, loaded; a canary that is gone from disk gets no episode."""
        served = self._served
        version = served.resolve(model, episode_id)
        if version in served.sampler.loaded() or await self._find_version(version):
            return version
        if model != served.name or version == served.serving:
            raise served.unknown(model)
        logger.warning("the canary %s@%d has no checkpoint here; version %d answers", model, version, served.serving)
        return served.serving

    async def _find_version(self, version: int) -> bool:
        """Load a version from disk once for all requests: each would block a thread."""
        finding = self._finding.get(version)
        if finding is None:
            finding = asyncio.ensure_future(asyncio.to_thread(self._served.find_version, version))
            self._finding[version] = finding
            finding.add_done_callback(lambda _: self._finding.pop(version))
        return await asyncio.shield(finding)

    def _answer(
        self,
        kind: str,
        model_request: ChatRequest | CompletionRequest,
        choices: Choices,
        answers: list[Generation],
        sampled: int,
    ) -> dict[str, Any]:
        """Return the body of a whole answer."""
        choice_bodies = [
            make_choice(model_request, index, answer, self._served.tokenizer, answer_id=choices.id)
            for index, answer in enumerate(answers)
        ]
        body = self._envelope(kind, choices) | {
            "choices": choice_bodies,
            "usage": usage(choices.prompt_tokens, sampled),
        }
        if model_request.return_token_ids or model_request.wants_logprobs:
            if len(choices.prompts) == 1:
                body["prompt_token_ids"] = choices.prompts[0]
            if not isinstance(model_request, ChatRequest):
                body["choices"] = [
                    {**choice_body, "prompt_token_ids": choices.prompt_of(i)}
                    for i, choice_body in enumerate(choice_bodies)
                ]
        return body

    async def _events(
        self, kind: str, model_request: ChatRequest | CompletionRequest, choices: Choices
    ) -> AsyncIterator[str]:
        kind = "chat.completion.chunk" if isinstance(model_request, ChatRequest) else kind
        stream = AnswerStream(model_request, choices, self._envelope(kind, choices), self._served.tokenizer)
        async for chunk in stream.events():
            yield chunk
        self._served.completion_tokens += stream.sampled_tokens
        if model_request.stream_options and model_request.stream_options.include_usage:
            usage_counts = usage(choices.prompt_tokens, stream.sampled_tokens)
            yield event({**self._envelope(kind, choices), "choices": [], "usage": usage_counts})
        yield DONE

    def _envelope(self, kind: str, choices: Choices) -> dict[str, Any]:
        name = f"{self._served.name}@{choices.version}"
        mode = self._served.sampler.logprobs_mode
        return {
            "id": choices.id,
            "object": kind,
            "created": choices.created_s,
            "model": name,
            "rollbus": describe_origin(name, seed=choices.seed, version=choices.version, logprobs_mode=mode),
        }


async def _parse_aside_if_long(read: Callable[[bytes], T], body: bytes) -> T:
    return await asyncio.to_thread(read, body) if len(body) > LONG_BODY_BYTES else read(body)


async def _wait_for_hang_up(request: Request) -> None:
    """Return when the client of a request that has been read closes its connection."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _answer_unknown_path(request: Request, error: Exception) -> Response:
    """Answer another path or method in OpenAI's shape too."""
    status = error.status_code if isinstance(error, HTTPException) else 500
    message = f"{request.method} {request.url.path} is not answered here; see GET /v1/models for what is served"
    return JSONResponse(RequestError(status, message).body(), status_code=status)


def _read_priority(headers: Headers) -> int:
    text = headers.get(PRIORITY_HEADER, "0").strip()
    if not PRIORITY.fullmatch(text):
        raise RequestError(400, f"{PRIORITY_HEADER}: {text[:40]!r} is not a whole number", param=PRIORITY_HEADER)
    return int(text)


def _stream(events: AsyncIterator[str]) -> Response:
    return StreamingResponse(events, media_type="text/event-stream", headers={"Cache-Control": "no-cache"})


Handler = Callable[[Request], Awaitable[Response]]


def _describe(refused: RefusedError, head: RequestHead) -> ErrorAnswer:
    code = "invalid_api_key" if refused.status == 401 else None
    return as_json(RequestError(refused.status, refused.message, code=code).body())


def _answering(handler: Handler) -> Handler:
    """Answer every failure in OpenAI's shape."""

    async def answer(request: Request) -> Response:
        try:
            return await handler(request)
        except RequestError as error:
            return JSONResponse(error.body(), status_code=error.status)
        except RollbusError as error:
            logger.warning("%s failed: %s", request.url.path, error)
            refusal = RequestError(503 if error.retriable else 500, str(error))
            return JSONResponse(refusal.body(), status_code=refusal.status)
        except Exception as error:
            logger.exception("%s failed", request.url.path)
            failure = RequestError(500, f"{type(error).__name__}: {error}")
            return JSONResponse(failure.body(), status_code=500)

    return answer
