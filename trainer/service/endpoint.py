"""The OpenAI-compatible HTTP endpoint of one model and all its loaded versions.

    POST /v1/chat/completions, /v1/completions    GET /v1/models, /health, /metrics

A request for `name` is answered by the serving version, one for `name@7` by version 7, and the answer's `model` says
which. The endpoint runs in a thread of its own, so training never delays it by more than the processor does.
"""

from __future__ import annotations

import asyncio
import functools
import hmac
import json
import logging
import random
import socket
import threading
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from rollbus.schemas.errors import ConfigurationError, UnavailableError
from rollbus.trainer.service.openai_api import (
    ChatRequest,
    CompletionRequest,
    RequestError,
    chat_choice,
    completion_choice,
    facts,
    parse,
    usage,
)
from rollbus.trainer.service.sampler import Generation, Sampler, UnknownVersionError
from rollbus.trainer.service.tokenizer import render_chat

logger = logging.getLogger(__name__)

START_TIMEOUT_S = 15.0


@dataclass(slots=True)
class ServedModel:
    """What the endpoint serves; `serving` is changed by whoever promotes a version."""

    name: str
    sampler: Sampler
    tokenizer: Any
    serving: int
    find_version: Callable[[int], bool] = lambda version: False
    """Load a version that is not loaded but still on disk; False if there is none."""
    seeds: random.Random = field(default_factory=random.SystemRandom)
    """Draws the seed of requests that bring none."""
    created_s: int = field(default_factory=lambda: int(time.time()))
    requests: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0

    def resolve(self, model: str) -> int:
        """The version that answers requests for `model`; RequestError 404 if none does."""
        name, at, number = model.partition("@")
        if name == self.name and not at:
            return self.serving
        if name == self.name and number.isdigit():
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


def build_app(served: ServedModel, *, api_key: str | None = None) -> Starlette:
    endpoint = _Endpoint(served)
    return Starlette(
        routes=[
            Route("/health", endpoint.health),
            Route("/metrics", endpoint.metrics),
            Route("/v1/models", _guarded(endpoint.models, api_key)),
            Route("/v1/chat/completions", _guarded(endpoint.chat, api_key), methods=["POST"]),
            Route("/v1/completions", _guarded(endpoint.completions, api_key), methods=["POST"]),
        ]
    )


class _Endpoint:
    def __init__(self, served: ServedModel) -> None:
        self._served = served

    async def health(self, request: Request) -> Response:
        return JSONResponse({"status": "ok", "serving": self._served.serving})

    async def metrics(self, request: Request) -> Response:
        served = self._served
        values = {
            "requests_total": served.requests,
            "prompt_tokens_total": served.prompt_tokens,
            "completion_tokens_total": served.completion_tokens,
            "forward_passes_total": served.sampler.steps,
            "serving_version": served.serving,
            "loaded_versions": len(served.sampler.loaded()),
        }
        return PlainTextResponse("".join(f"rollbus_service_{name} {value}\n" for name, value in values.items()))

    async def models(self, request: Request) -> Response:
        served = self._served
        names = [served.name, *(f"{served.name}@{version}" for version in served.sampler.loaded())]
        entries = [
            {
                "id": name,
                "object": "model",
                "created": served.created_s,
                "owned_by": "rollbus",
                "max_model_len": served.sampler.config.max_tokens,
            }
            for name in names
        ]
        return JSONResponse({"object": "list", "data": entries})

    async def chat(self, request: Request) -> Response:
        wanted = parse(ChatRequest, await request.body())
        tools = wanted.tools if wanted.tool_choice != "none" else None
        try:
            prompt = render_chat(self._served.tokenizer, wanted.messages, tools)
        except Exception as error:  # the template is the user's, and raises what it likes
            raise RequestError(400, f"messages: the chat template refused them: {error}", param="messages") from error
        run = await self._start(wanted, prompt)
        if wanted.stream:
            return _stream(self._chat_chunks(wanted, run))
        answers = await run.answers()
        choices = [chat_choice(wanted, i, answer, self._served.tokenizer) for i, answer in enumerate(answers)]
        return JSONResponse(self._answer("chat.completion", wanted, run, choices, answers))

    async def completions(self, request: Request) -> Response:
        wanted = parse(CompletionRequest, await request.body())
        if wanted.stream:
            raise RequestError(400, "stream: only chat completions stream", param="stream")
        prompt = (
            self._served.tokenizer.encode(wanted.prompt, add_special_tokens=False)
            if isinstance(wanted.prompt, str)
            else wanted.prompt
        )
        if any(not 0 <= token_id < self._served.sampler.config.vocabulary for token_id in prompt):
            raise RequestError(400, "prompt: a token id lies outside the vocabulary", param="prompt")
        run = await self._start(wanted, prompt)
        answers = await run.answers()
        choices = [completion_choice(wanted, i, answer, self._served.tokenizer) for i, answer in enumerate(answers)]
        return JSONResponse(self._answer("text_completion", wanted, run, choices, answers))

    async def _start(self, wanted: ChatRequest | CompletionRequest, prompt: list[int]) -> _Run:
        served = self._served
        version = served.resolve(wanted.model)
        if version not in served.sampler.loaded() and not await asyncio.to_thread(served.find_version, version):
            raise served.unknown(wanted.model)
        room = served.sampler.config.max_tokens - len(prompt)
        max_tokens = room if wanted.wanted_tokens is None else wanted.wanted_tokens
        if room < 1 or max_tokens > room or not prompt:
            raise RequestError(
                400,
                f"This model's maximum context length is {served.sampler.config.max_tokens} tokens; the prompt has "
                f"{len(prompt)} and {max(max_tokens, 1)} more were asked for. Shorten the prompt or max_tokens.",
                param="messages" if isinstance(wanted, ChatRequest) else "prompt",
                code="context_length_exceeded",
            )
        seed = served.seeds.randrange(2**31) if wanted.seed is None else wanted.seed
        run = _Run(version, prompt, seed, asyncio.get_running_loop(), wanted.n if wanted.stream else 0)
        try:
            for index in range(wanted.n):
                # Choices of one request differ, and the first is what n=1 with the same seed gives.
                parameters = wanted.sampling(
                    max_tokens=max_tokens, seed=seed + (index << 32), top_logprobs=wanted.alternatives
                )
                run.submit(served.sampler, parameters, index)
        except UnknownVersionError as error:  # retired between the two lines above
            raise served.unknown(wanted.model) from error
        except RuntimeError as error:
            raise RequestError(503, str(error)) from error
        served.requests += 1
        served.prompt_tokens += len(prompt)
        return run

    def _answer(
        self,
        kind: str,
        wanted: ChatRequest | CompletionRequest,
        run: _Run,
        choices: list[dict[str, Any]],
        answers: list[Generation],
    ) -> dict[str, Any]:
        sampled = sum(len(answer.token_ids) for answer in answers)
        self._served.completion_tokens += sampled
        body = self._envelope(kind, run)
        body["choices"] = choices
        body["usage"] = usage(len(run.prompt), sampled)
        if wanted.return_token_ids or wanted.wants_logprobs:
            body["prompt_token_ids"] = run.prompt
        return body

    def _envelope(self, kind: str, run: _Run) -> dict[str, Any]:
        name = f"{self._served.name}@{run.version}"
        return {
            "id": run.id,
            "object": kind,
            "created": run.created_s,
            "model": name,
            "rollbus": facts(
                name, seed=run.seed, version=run.version, logprobs_mode=self._served.sampler.logprobs_mode
            ),
        }

    async def _chat_chunks(self, wanted: ChatRequest, run: _Run) -> AsyncIterator[str]:
        """Server-sent events: a first chunk per choice, one per token, a last one with the finish reason."""
        envelope = self._envelope("chat.completion.chunk", run)
        streams = [_TextStream(wanted, self._served.tokenizer) for _ in range(wanted.n)]

        def event(**changed: Any) -> str:
            return f"data: {json.dumps({**envelope, **changed})}\n\n"

        def chunk(index: int, delta: dict[str, Any], finish: str | None = None, **more: Any) -> dict[str, Any]:
            return {"index": index, "delta": delta, "finish_reason": finish, **more}

        first: dict[str, Any] = {}
        if wanted.return_token_ids or wanted.wants_logprobs:
            first["prompt_token_ids"] = run.prompt
        for index in range(wanted.n):
            yield event(choices=[chunk(index, {"role": "assistant", "content": ""})], **first)
        sampled, open_choices = 0, wanted.n
        try:
            while open_choices:
                index, token_id, logprob = await run.tokens.get()
                if token_id is None:
                    open_choices -= 1
                    answer = await run.answer(index)
                    sampled += len(answer.token_ids)
                    rest = streams[index].rest(answer.text)
                    yield event(choices=[chunk(index, {"content": rest} if rest else {}, answer.finish_reason)])
                    continue
                text, more = streams[index].add(token_id, logprob)
                yield event(choices=[chunk(index, {"content": text}, **more)])
        finally:
            run.cancel()
        self._served.completion_tokens += sampled
        if wanted.stream_options and wanted.stream_options.include_usage:
            yield event(choices=[], usage=usage(len(run.prompt), sampled))
        yield "data: [DONE]\n\n"


class _TextStream:
    """Turns the tokens of one choice into text deltas that never show half a character or a stop string."""

    def __init__(self, wanted: ChatRequest, tokenizer: Any) -> None:
        self._wanted = wanted
        self._tokenizer = tokenizer
        self._token_ids: list[int] = []
        self._sent = ""
        self._held = max((len(stop) for stop in wanted.stop), default=1) - 1

    def add(self, token_id: int, logprob: float) -> tuple[str, dict[str, Any]]:
        self._token_ids.append(token_id)
        text: str = self._tokenizer.decode(self._token_ids, skip_special_tokens=True)
        ready = text[: len(text) - self._held] if self._held else text
        if ready.endswith("\ufffd") or any(stop in text for stop in self._wanted.stop):
            ready = self._sent
        delta, self._sent = ready[len(self._sent) :], ready if len(ready) > len(self._sent) else self._sent
        more: dict[str, Any] = {}
        if self._wanted.wants_logprobs:
            one = Generation((token_id,), (logprob,), "", "stop", 0)
            choice = chat_choice(self._wanted, 0, one, self._tokenizer)
            more["logprobs"] = choice["logprobs"]
        if self._wanted.wants_logprobs or self._wanted.return_token_ids:
            more["token_ids"] = [token_id]
        return delta, more

    def rest(self, text: str) -> str:
        return text[len(self._sent) :]


class _Run:
    """The choices of one request on their way through the sampler."""

    def __init__(
        self, version: int, prompt: list[int], seed: int, loop: asyncio.AbstractEventLoop, streams: int
    ) -> None:
        self.id = f"cmpl-{uuid.uuid4().hex}"
        self.created_s = int(time.time())
        self.version, self.prompt, self.seed = version, prompt, seed
        self.tokens: asyncio.Queue[tuple[int, int | None, float]] = asyncio.Queue()
        self._loop, self._streaming = loop, streams > 0
        self._futures: list[asyncio.Future[Generation]] = []

    def submit(self, sampler: Sampler, parameters: Any, index: int) -> None:
        put = functools.partial(self._put, index) if self._streaming else None
        future = asyncio.wrap_future(sampler.submit(self.prompt, parameters, self.version, put), loop=self._loop)
        if self._streaming:
            future.add_done_callback(lambda _: self.tokens.put_nowait((index, None, 0.0)))
        self._futures.append(future)

    def _put(self, index: int, token_id: int, logprob: float) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self.tokens.put_nowait, (index, token_id, logprob))

    async def answers(self) -> list[Generation]:
        return [await self.answer(index) for index in range(len(self._futures))]

    async def answer(self, index: int) -> Generation:
        try:
            return await self._futures[index]
        except asyncio.CancelledError:
            self.cancel()
            raise
        except Exception as error:
            raise RequestError(500, f"generation failed: {error}") from error

    def cancel(self) -> None:
        for future in self._futures:
            future.cancel()


class EndpointServer:
    """The app under uvicorn in a thread of its own."""

    def __init__(self, app: Any, *, host: str, port: int) -> None:
        self._app = app
        self.host = host
        self._socket = _listen(host, port)
        self.port: int = self._socket.getsockname()[1]
        config = uvicorn.Config(app, log_level="warning", access_log=False, lifespan="off", timeout_graceful_shutdown=5)
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._serve, name="endpoint", daemon=True)

    def start(self) -> None:
        self._thread.start()
        deadline = time.monotonic() + START_TIMEOUT_S
        while not self._server.started:
            if not self._thread.is_alive() or time.monotonic() > deadline:
                raise UnavailableError(f"the model endpoint did not start on {self.host}:{self.port}")
            time.sleep(0.01)

    def stop(self) -> None:
        self._server.should_exit = True
        self._thread.join(timeout=10)

    def _serve(self) -> None:
        asyncio.run(self._server.serve(sockets=[self._socket]))


def _listen(host: str, port: int) -> socket.socket:
    # With the protocol named, asyncio turns Nagle's algorithm off; without it each answer waits 40 ms for an ack.
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise ConfigurationError(
            f"port {port} on {host} cannot be used ({error.strerror}); choose another model port or stop what holds it"
        ) from error
    return listener


def _stream(events: AsyncIterator[str]) -> Response:
    return StreamingResponse(events, media_type="text/event-stream", headers={"Cache-Control": "no-cache"})


Handler = Callable[[Request], Awaitable[Response]]


def _guarded(handler: Handler, api_key: str | None) -> Handler:
    """Check the bearer token and answer every failure in OpenAI's shape."""

    async def answer(request: Request) -> Response:
        try:
            given = request.headers.get("authorization", "").removeprefix("Bearer ")
            if api_key is not None and not hmac.compare_digest(given.encode(), api_key.encode()):
                raise RequestError(401, "the API key is missing or wrong", code="invalid_api_key")
            return await handler(request)
        except RequestError as error:
            return JSONResponse(error.body(), status_code=error.status)
        except Exception as error:
            logger.exception("%s failed", request.url.path)
            failure = RequestError(500, f"{type(error).__name__}: {error}")
            return JSONResponse(failure.body(), status_code=500)

    return answer
