"""The endpoint over HTTP in this process, without ART."""

import asyncio
import json
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any, cast
from urllib.parse import quote

import httpx
import openai
import pytest

from rollbus.estimates.scoring import EndpointScorer
from rollbus.schemas.errors import ConfigurationError, UnavailableError
from rollbus.schemas.records.delivery import PolicyDecision, is_drawn
from rollbus.schemas.routing import Router
from rollbus.trainer.art_server.endpoint import endpoint
from rollbus.trainer.art_server.endpoint.answer_stream import _ChoiceStream
from rollbus.trainer.art_server.endpoint.choices import Sampled
from rollbus.trainer.art_server.endpoint.endpoint import ServedModel, build_app
from rollbus.trainer.art_server.endpoint.openai_answers import TextOffsets, logprobs_of, token_logprobs
from rollbus.trainer.art_server.endpoint.openai_api import ChatRequest, CompletionRequest, RequestError, parse
from rollbus.trainer.art_server.sampler.requests import Generation, SamplingParameters, TokenSampler
from rollbus.trainer.art_server.sampler.sampler import Sampler
from tests.models import create_model, load_model
from tests.trainer.art_server.conftest import serving
from tests.waiting import until

MESSAGES: list[Any] = [{"role": "user", "content": "choose a letter"}]


@pytest.fixture(scope="module")
def served(base_model: Path, tokenizer: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedModel]:
    model, config = load_model(base_model)
    sampler = Sampler(config, tokenizer, max_rows=16)
    other = create_model(tmp_path_factory.mktemp("other") / "one", config, tokenizer, seed=8)
    sampler.load(0, model)
    sampler.load(1, load_model(other)[0])
    yield ServedModel("agent", sampler, tokenizer, serving=1)
    sampler.close()


class EndlessSampler:
    """Takes requests and never answers them; the one of this number fails."""

    def __init__(self, like: TokenSampler, failing: int | None = None) -> None:
        self.config, self.logprobs_mode, self.loaded = like.config, like.logprobs_mode, like.loaded
        self.asked, self.given_up = threading.Semaphore(0), threading.Semaphore(0)
        self._countdown = -1 if failing is None else failing

    def submit(self, *args: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.add_done_callback(lambda _: self.given_up.release())
        if self._countdown == 0:
            future.set_exception(MemoryError("out of memory"))
        self._countdown -= 1
        self.asked.release()
        return future


@pytest.fixture(scope="module")
def url(served: ServedModel) -> Iterator[str]:
    with serving(served, "secret") as address:
        yield address


@pytest.fixture
async def client(url: str) -> Any:
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="secret", max_retries=0) as openai_client:
        yield openai_client


def decided(number: int, **fields: Any) -> PolicyDecision:
    defaults: dict[str, Any] = {"action": "canary", "serving": 1, "canary": 0, "share": 0.5, "reason": "r"}
    return PolicyDecision(model="agent", run_id="main", number=number, decided_at_ms=0, **(defaults | fields))


async def test_a_share_of_the_episodes_gets_the_canary_under_the_bare_name(
    served: ServedModel, client: openai.AsyncOpenAI, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn_episode, other_episode = (
        next(f"e/{n}" for n in range(99) if is_drawn("agent", 0, f"e/{n}", 0.5) is want) for want in (True, False)
    )
    monkeypatch.setattr(served, "router", Router())

    async def answering(episode: str | None, model: str = "agent") -> str:
        headers = {} if episode is None else {"rollbus-episode": quote(episode, safe="")}
        answer = await client.chat.completions.create(
            model=model, messages=MESSAGES, max_tokens=1, extra_headers=headers
        )
        return answer.model

    assert await answering(drawn_episode) == "agent@1", "nothing is decided yet"
    served.router.use(decided(1))
    assert [await answering(episode) for episode in (drawn_episode, other_episode, None)] == [
        "agent@0",
        "agent@1",
        "agent@1",
    ]
    assert await answering(drawn_episode, "agent@1") == "agent@1", "a version that is named is not routed"
    served.router.use(decided(2, canary=7, share=1.0))
    assert await answering(other_episode) == "agent@1", "a canary without a checkpoint gets no episode"
    served.router.use(decided(3, serving=5))
    assert await answering(drawn_episode) == "agent@1", "an operator has put another version into service here"
    served.router.use(decided(4, action="quarantine", canary=None, share=0.0))
    assert await answering(drawn_episode) == "agent@1"


async def test_the_priority_of_a_request_is_in_its_header(
    served: ServedModel, client: openai.AsyncOpenAI, monkeypatch: pytest.MonkeyPatch
) -> None:
    priorities: list[int] = []
    submit = served.sampler.submit

    def noting(prompt: Any, parameters: Any, *more: Any) -> Any:
        priorities.append(parameters.priority)
        return submit(prompt, parameters, *more)

    monkeypatch.setattr(served.sampler, "submit", noting)
    for headers in ({}, {"rollbus-priority": "1"}, {"rollbus-priority": "-3"}):
        await client.chat.completions.create(model="agent", messages=MESSAGES, max_tokens=1, extra_headers=headers)
    assert priorities == [0, 1, -3]
    with pytest.raises(openai.BadRequestError, match="rollbus-priority: 'soon' is not a whole number"):
        await client.chat.completions.create(
            model="agent", messages=MESSAGES, extra_headers={"rollbus-priority": "soon"}
        )


async def test_an_answer_names_the_version_that_made_it(client: openai.AsyncOpenAI) -> None:
    serving = await client.chat.completions.create(model="agent", messages=MESSAGES, max_tokens=3)
    older = await client.chat.completions.create(model="agent@0", messages=MESSAGES, max_tokens=3)
    assert (serving.model, older.model) == ("agent@1", "agent@0")
    extra: Any = older.model_extra
    assert extra["rollbus"]["policy_version"] == 0
    assert extra["rollbus"]["logprobs_mode"] == "raw"


async def test_ids_and_logprobs_come_with_the_answer(client: openai.AsyncOpenAI, served: ServedModel) -> None:
    answer = await client.chat.completions.create(
        model="agent", messages=MESSAGES, max_tokens=5, logprobs=True, top_logprobs=2, seed=4
    )
    choice: Any = answer.choices[0]
    body: Any = answer
    assert served.tokenizer.decode(body.prompt_token_ids).endswith("<|im_start|>assistant\n")
    assert [entry.token for entry in choice.logprobs.content] == [
        f"token_id:{token_id}" for token_id in choice.token_ids
    ]
    assert all(entry.logprob <= 0 and len(entry.top_logprobs) == 2 for entry in choice.logprobs.content)
    assert answer.usage is not None
    assert answer.usage.completion_tokens == len(choice.token_ids)
    assert answer.usage.prompt_tokens == len(body.prompt_token_ids)


async def test_log_probs_come_beside_a_request_for_alternatives(
    client: openai.AsyncOpenAI, served: ServedModel
) -> None:
    """Both are sampled together for three tokens; the longer one then goes on alone."""
    begun, go_on = threading.Event(), threading.Event()

    def hold(*_: object) -> None:
        begun.set()
        go_on.wait(timeout=120)

    running = served.sampler.submit([5, 6], SamplingParameters(max_tokens=1), 1, hold)
    assert await asyncio.to_thread(begun.wait, 120)
    options: dict[str, Any] = {"model": "agent", "messages": MESSAGES, "extra_body": {"ignore_eos": True}}
    asked = [
        asyncio.create_task(
            client.chat.completions.create(logprobs=True, top_logprobs=alternatives, max_tokens=tokens, **options)
        )
        for alternatives, tokens in ((0, 9), (2, 3))
    ]
    await until(lambda: served.sampler.count_rows() == (1, 2), "both requests wait for a row")
    go_on.set()
    running.result(timeout=120)
    answers: list[Any] = await asyncio.gather(*asked)
    assert [[len(entry.top_logprobs) for entry in answer.choices[0].logprobs.content] for answer in answers] == [
        [0] * 9,
        [2] * 3,
    ]


async def test_ids_come_when_asked_for_without_logprobs(client: openai.AsyncOpenAI) -> None:
    answer: Any = await client.chat.completions.create(
        model="agent", messages=MESSAGES, max_tokens=2, extra_body={"return_token_ids": True}
    )
    assert answer.prompt_token_ids
    assert answer.choices[0].token_ids
    assert answer.choices[0].logprobs is None


async def test_n_choices_differ_and_repeat_with_the_seed(client: openai.AsyncOpenAI) -> None:
    async def texts(n: int) -> list[str | None]:
        answer = await client.chat.completions.create(model="agent", messages=MESSAGES, max_tokens=8, n=n, seed=9)
        return [choice.message.content for choice in answer.choices]

    three = await texts(3)
    assert len(set(three)) == 3
    assert await texts(3) == three
    assert await texts(1) == three[:1]


async def test_streamed_text_and_log_probs_are_those_of_the_answer(client: openai.AsyncOpenAI) -> None:
    options: dict[str, Any] = {"model": "agent", "messages": MESSAGES, "max_tokens": 20, "seed": 2}
    options |= {"logprobs": True, "top_logprobs": 3}
    whole: Any = await client.chat.completions.create(**options)
    stream: Any = await client.chat.completions.create(**options, stream=True, stream_options={"include_usage": True})
    chunks = [chunk async for chunk in stream]
    choices = [choice for chunk in chunks for choice in chunk.choices]
    assert "".join(choice.delta.content or "" for choice in choices) == whole.choices[0].message.content
    token_ids = [token_id for choice in choices for token_id in choice.model_extra.get("token_ids", [])]
    assert token_ids == whole.choices[0].token_ids
    entries = [entry for choice in choices if choice.logprobs for entry in choice.logprobs.content]
    assert entries == whole.choices[0].logprobs.content
    assert {len(entry.top_logprobs) for entry in entries} == {3}
    assert chunks[-1].usage == whole.usage
    assert {chunk.model for chunk in chunks} == {"agent@1"}


def test_a_token_of_half_a_character_has_its_bytes_and_offset(served: ServedModel) -> None:
    text = "é→漢😀 say\n"
    token_ids = tuple(served.tokenizer.encode(text))
    request = ChatRequest.model_validate({"model": "agent", "messages": MESSAGES, "logprobs": True})
    answer = Generation(token_ids, (-1.0,) * len(token_ids), text, "stop", 0)
    entries = token_logprobs(request, answer, served.tokenizer)
    assert bytes(byte for entry in entries for byte in entry["bytes"]).decode() == text
    assert len(entries) > len(text), "some token is half a character"
    plain = CompletionRequest.model_validate({"model": "agent", "prompt": "", "logprobs": 0})
    offsets = logprobs_of(plain, answer, served.tokenizer, TextOffsets())["text_offset"]
    assert offsets == [0] * 2 + [1] * 3 + [2] * 3 + [3] * 4 + [4, 8]


async def test_streaming_holds_back_a_stop_string(client: openai.AsyncOpenAI) -> None:
    options: dict[str, Any] = {"model": "agent", "messages": MESSAGES, "max_tokens": 30, "seed": 2}
    whole = (await client.chat.completions.create(**options)).choices[0].message.content or ""
    stop = whole[4:6]
    chunks = [chunk async for chunk in await client.chat.completions.create(**options, stop=stop, stream=True)]
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert text == whole[: whole.find(stop)]
    assert chunks[-1].choices[0].finish_reason == "stop"


async def test_plain_completions_take_text_or_ids(client: openai.AsyncOpenAI, served: ServedModel) -> None:
    text = "choose a letter"
    by_text = await client.completions.create(model="agent", prompt=text, max_tokens=4, seed=1, logprobs=1)
    by_ids = await client.completions.create(model="agent", prompt=served.tokenizer.encode(text), max_tokens=4, seed=1)
    assert by_text.choices[0].text == by_ids.choices[0].text
    assert by_text.choices[0].logprobs is not None


async def test_scoring_a_prompt_gives_the_log_probs_of_its_sampling(
    client: openai.AsyncOpenAI, served: ServedModel, url: str
) -> None:
    """As vLLM does it: `echo`, and nothing more is sampled. Prompts that share beginnings are scored whole."""
    prompt = served.tokenizer.encode("choose a letter")
    sampled: Any = await client.completions.create(
        model="agent@0", prompt=prompt, max_tokens=5, logprobs=0, seed=3, extra_body={"ignore_eos": True}
    )
    tokens, recorded = sampled.choices[0].token_ids, sampled.choices[0].logprobs.token_logprobs
    whole = [*prompt, *tokens]

    async def score(model: str, *prompts: list[int]) -> list[list[float | None]]:
        answer: Any = await client.completions.create(
            model=model, prompt=list(prompts), max_tokens=0, echo=True, logprobs=0
        )
        assert (answer.usage.completion_tokens, answer.choices[0].token_ids) == (0, [])
        return [choice.logprobs.token_logprobs for choice in answer.choices]

    first, again, shorter = await score("agent@0", whole, whole, whole[:-2])
    assert (len(first), first[0]) == (len(whole), None)
    assert first[len(prompt) :] == pytest.approx(recorded, abs=1e-5)
    assert again[1:] == pytest.approx(first[1:], abs=1e-5)
    assert shorter[1:] == pytest.approx(first[1:-2], abs=1e-5)
    (other,) = await score("agent@1", whole)
    assert other[len(prompt) :] != pytest.approx(recorded, abs=1e-3)
    scorer = EndpointScorer(f"{url}/v1", "secret")
    assert await scorer.score("agent@1", [whole]) == [pytest.approx(other[1:], abs=1e-5)], "as estimates ask"
    await scorer.close()


@pytest.mark.parametrize(
    "changed", [{"max_tokens": 2}, {"logprobs": None}, {"n": 2}, {"stream": True}, {"echo": False}]
)
async def test_a_prompt_is_scored_in_one_way_only(client: openai.AsyncOpenAI, changed: dict[str, Any]) -> None:
    options: dict[str, Any] = {"max_tokens": 0, "echo": True, "logprobs": 0} | changed
    with pytest.raises(openai.BadRequestError, match="echo is answered with max_tokens 0 and logprobs 0"):
        await client.completions.create(model="agent", prompt=[1, 2], **options)


@pytest.mark.parametrize(
    ("changed", "status", "param"),
    [
        ({"model": "other"}, 404, "model"),
        ({"model": "agent@77"}, 404, "model"),
        ({"model": "agent@x"}, 404, "model"),
        ({"model": "agent@²"}, 404, "model"),
        ({"model": f"agent@{'1' * 5000}"}, 404, "model"),
        ({"temperature": 3}, 400, "temperature"),
        ({"top_p": 0}, 400, "top_p"),
        ({"n": 0}, 400, "n"),
        ({"max_tokens": 0}, 400, "max_tokens"),
        ({"max_tokens": 500}, 400, "messages"),
        ({"presence_penalty": 1}, 400, "presence_penalty"),
        ({"logit_bias": {"5": 1}}, 400, "logit_bias"),
        ({"response_format": {"type": "json_object"}}, 400, "response_format"),
        ({"messages": []}, 400, "messages"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, 400, "messages"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, 400, "messages"),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": 5}]}]}, 400, "messages"),
        ({"messages": [{"role": "user", "content": ["text"]}]}, 400, "messages"),
        ({"messages": [{"role": "assistant", "tool_calls": "none"}]}, 400, "messages"),
        ({"stop": ["a", ""]}, 400, "stop"),
        ({"seed": 2**63}, 400, "seed"),
        ({"chat_template_kwargs": {"enable_thinking": False}}, 400, "chat_template_kwargs"),
        ({"continue_final_message": True}, 400, "continue_final_message"),
        ({"add_generation_prompt": False}, 400, "add_generation_prompt"),
        ({"messages": [{"role": "user", "content": "choose " * 200}]}, 400, "messages"),
    ],
)
async def test_an_unanswerable_field_is_refused_by_name(
    url: str, changed: dict[str, Any], status: int, param: str
) -> None:
    body = {"model": "agent", "messages": MESSAGES, "max_tokens": 2} | changed
    async with httpx.AsyncClient(headers={"Authorization": "Bearer secret"}) as http:
        answer = await http.post(f"{url}/v1/chat/completions", json=body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (status, param)


OF_OTHER_SERVERS = {
    "best_of": 2,
    "typical_p": 0.5,
    "repeat_penalty": 1.1,
    "tfs_z": 0.9,
    "xtc_probability": 0.5,
    "dry_multiplier": 0.8,
    "mirostat": 2,
    "reasoning_effort": "low",
    "enable_thinking": False,
    "thinking_budget": 100,
    "do_sample": False,
}
"""What SGLang, llama.cpp, Ollama, text-generation-webui and OpenAI sample by, and this server does not."""


@pytest.mark.parametrize("name", OF_OTHER_SERVERS)
def test_a_sampling_option_of_another_server_is_refused_by_its_name(name: str) -> None:
    body = {"model": "agent", "messages": MESSAGES, name: OF_OTHER_SERVERS[name]}
    with pytest.raises(RequestError, match=f"{name} is not supported by this server") as refused:
        parse(ChatRequest, json.dumps(body).encode())
    assert (refused.value.status, refused.value.param) == (400, name)


def test_an_option_that_changes_nothing_is_taken() -> None:
    neutral = {
        "temperature": 1,
        "top_p": 1,
        "top_k": -1,
        "min_p": 0,
        "repetition_penalty": 1,
        "presence_penalty": 0,
        "best_of": 1,
        "length_penalty": 1.0,
        "typical_p": 1.0,
        "repeat_penalty": 1,
        "xtc_probability": 0,
        "dry_multiplier": 0.0,
        "do_sample": True,
    }
    parse(ChatRequest, json.dumps({"model": "agent", "messages": MESSAGES, **neutral}).encode())


@pytest.mark.parametrize("prompt", ["", [], [[1, 2], []]])
async def test_an_empty_prompt_is_refused(client: openai.AsyncOpenAI, prompt: Any) -> None:
    with pytest.raises(openai.BadRequestError, match="a prompt is empty"):
        await client.completions.create(model="agent", prompt=prompt, max_tokens=2)


async def test_too_many_answers_for_the_queue_are_refused_by_their_number(client: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="100 prompts, 100 times each; 4096 answers are the most"):
        await client.completions.create(model="agent", prompt=["a"] * 100, n=100, max_tokens=1)


async def test_a_null_field_counts_as_absent(url: str) -> None:
    optional = (
        "n",
        "temperature",
        "top_p",
        "max_tokens",
        "stop",
        "seed",
        "stream",
        "stream_options",
        "logprobs",
        "tools",
    )
    body = {"model": "agent", "messages": MESSAGES, "max_completion_tokens": 2} | dict.fromkeys(optional)
    async with httpx.AsyncClient(headers={"Authorization": "Bearer secret"}) as http:
        answer = await http.post(f"{url}/v1/chat/completions", json=body)
    assert (answer.status_code, len(answer.json()["choices"])) == (200, 1)


async def test_an_unserved_path_is_refused_in_openais_shape(client: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="/v1/embeddings is not answered here"):
        await client.embeddings.create(model="agent", input="a")


async def test_a_seed_and_its_negative_are_two_seeds(client: openai.AsyncOpenAI) -> None:
    options: dict[str, Any] = {"model": "agent", "messages": MESSAGES, "max_tokens": 12, "temperature": 2}
    texts = {
        (await client.chat.completions.create(**options, seed=seed)).choices[0].message.content for seed in (5, -5)
    }
    assert len(texts) == 2


JSON_HEADERS = {"Authorization": "Bearer secret", "content-type": "application/json"}


async def test_a_wrong_key_and_broken_json_are_refused(url: str) -> None:
    async with httpx.AsyncClient() as http:
        refused = await http.get(f"{url}/v1/models")
        assert refused.status_code == 401
        assert "ROLLBUS_SECRETS names that folder" in refused.json()["error"]["message"]
        broken = await http.post(f"{url}/v1/chat/completions", content=b"{", headers=JSON_HEADERS)
        assert broken.status_code == 400
        assert "JSON" in broken.json()["error"]["message"]
        assert (await http.get(f"{url}/health")).json()["status"] == "ok"


async def test_models_lists_every_loaded_version(client: openai.AsyncOpenAI) -> None:
    assert [model.id async for model in client.models.list()] == ["agent", "agent@0", "agent@1"]


@pytest.mark.parametrize("name", ["agent", "agent@0", "agent@1"])
async def test_a_model_is_retrieved_by_its_name(client: openai.AsyncOpenAI, name: str) -> None:
    model = await client.models.retrieve(name)
    assert [model.model_dump()] == [entry.model_dump() async for entry in client.models.list() if entry.id == name]


async def test_a_version_on_disk_is_retrieved(served: ServedModel) -> None:
    model = ServedModel("team/agent", served.sampler, served.tokenizer, serving=1, find_version=lambda version: True)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(build_app(model)), base_url="http://model") as http:
        for path in ("team/agent@7", "team%2Fagent%407"):
            assert (await http.get(f"/v1/models/{path}")).json()["id"] == "team/agent@7"


@pytest.mark.parametrize("name", ["other", "agent@77", "agent@x"])
async def test_retrieving_an_unknown_model_is_refused_in_openais_shape(client: openai.AsyncOpenAI, name: str) -> None:
    with pytest.raises(openai.NotFoundError, match=f"The model `{name}` does not exist") as refused:
        await client.models.retrieve(name)
    assert (refused.value.code, refused.value.param) == ("model_not_found", "model")


async def test_metrics_count_requests(url: str) -> None:
    async with httpx.AsyncClient(headers={"Authorization": "Bearer secret"}) as http:
        text = (await http.get(f"{url}/metrics")).text
    values = dict(line.split() for line in text.splitlines() if not line.startswith("#"))
    assert int(values["rollbus_service_requests_total"]) > 0
    assert values["rollbus_service_serving_version"] == "1"


@pytest.mark.parametrize("path", ["chat/completions", "completions"])
@pytest.mark.parametrize("streaming", [True, False])
async def test_a_request_ends_when_its_client_hangs_up(served: ServedModel, path: str, streaming: bool) -> None:
    sampler = EndlessSampler(served.sampler)
    model = ServedModel("agent", cast(Any, sampler), served.tokenizer, serving=1)
    body = {"model": "agent", "messages": MESSAGES, "prompt": "choose", "stream": streaming, "max_tokens": 9, "n": 3}
    with serving(model) as url:
        async with httpx.AsyncClient(timeout=120) as http:
            asking = asyncio.create_task(http.post(f"{url}/v1/{path}", json=body))
            for _ in range(3):
                await asyncio.to_thread(sampler.asked.acquire)
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
        for _ in range(3):
            await asyncio.to_thread(sampler.given_up.acquire)


@pytest.mark.parametrize("failing", [0, 2])
@pytest.mark.parametrize("streaming", [True, False])
async def test_a_choice_that_fails_ends_the_others_of_its_request(
    served: ServedModel, failing: int, streaming: bool
) -> None:
    sampler = EndlessSampler(served.sampler, failing=failing)
    model = ServedModel("agent", cast(Any, sampler), served.tokenizer, serving=1)
    body = {"model": "agent", "messages": MESSAGES, "stream": streaming, "max_tokens": 9, "n": 3}
    with serving(model) as url:
        async with httpx.AsyncClient(timeout=60) as http:
            answer = await http.post(f"{url}/v1/chat/completions", json=body)
        given_up = [await asyncio.to_thread(sampler.given_up.acquire, True, 60) for _ in range(3)]
    assert given_up == [True] * 3
    assert "generation failed: out of memory" in answer.text


@pytest.mark.parametrize("path", ["chat/completions", "completions"])
async def test_a_request_ends_when_its_client_leaves_before_the_stream(served: ServedModel, path: str) -> None:
    sampler, lookup_may_end, lookup_began = EndlessSampler(served.sampler), threading.Event(), threading.Event()

    def find_version(version: int) -> bool:
        lookup_began.set()
        return lookup_may_end.wait(120)

    model = ServedModel("agent", cast(Any, sampler), served.tokenizer, serving=1, find_version=find_version)
    body = {"model": "agent@7", "messages": MESSAGES, "prompt": "choose", "stream": True, "max_tokens": 9, "n": 3}
    with serving(model) as url:
        async with httpx.AsyncClient(timeout=120) as http:
            asking = asyncio.create_task(http.post(f"{url}/v1/{path}", json=body))
            await asyncio.to_thread(lookup_began.wait, 120)
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
        await asyncio.sleep(0.2)  # until the server has heard that the connection is closed
        lookup_may_end.set()
        given_up = [await asyncio.to_thread(sampler.given_up.acquire, True, 120) for _ in range(3)]
    assert given_up == [True] * 3


@pytest.mark.parametrize(("failure", "status"), [(UnavailableError, 503), (ConfigurationError, 500)])
async def test_a_version_that_cannot_be_read_now_is_refused_with_a_remedy(
    served: ServedModel, failure: type[Exception], status: int
) -> None:
    def find_version(version: int) -> bool:
        raise failure("version 7 ran out of memory; use a smaller model")

    model = ServedModel("agent", served.sampler, served.tokenizer, serving=1, find_version=find_version)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(build_app(model)), base_url="http://model") as http:
        answer = await http.post("/v1/chat/completions", json={"model": "agent@7", "messages": MESSAGES})
    assert answer.status_code == status
    assert answer.json()["error"]["message"] == "version 7 ran out of memory; use a smaller model"


async def test_many_requests_for_a_version_on_disk_hold_up_no_other(served: ServedModel) -> None:
    """It is looked for once, however many ask, so that threads are left for others' long prompts."""
    lookups, lookup_may_end = threading.Semaphore(0), threading.Event()

    def find_version(version: int) -> bool:
        lookups.release()
        lookup_may_end.wait(600)
        return False

    model = ServedModel("agent", served.sampler, served.tokenizer, serving=1, find_version=find_version)
    at_disk, long = {"model": "agent@7", "prompt": "choose"}, "X" * endpoint.LONG_BODY_BYTES
    with serving(model) as url:
        where = f"{url}/v1/completions"
        async with httpx.AsyncClient(timeout=120) as http:
            answer_tasks = [asyncio.create_task(http.post(where, json=at_disk)) for _ in range(40)]
            await asyncio.to_thread(lookups.acquire)
            await asyncio.sleep(0.3)  # until all have asked
            refused = await http.post(where, json={"model": "agent", "prompt": long}, timeout=120)
            lookup_may_end.set()
            answers = [await answer_task for answer_task in answer_tasks]
    assert refused.json()["error"]["code"] == "context_length_exceeded"
    assert {answer.status_code for answer in answers} == {404}
    assert not lookups.acquire(timeout=0)


class BytesTokenizer:
    """One token is one byte of UTF-8, so most characters are several tokens."""

    def decode(self, token_ids: list[int], **_: Any) -> str:
        return bytes(token_ids).decode("utf-8", "replace")


@pytest.mark.parametrize(
    ("text", "stop", "answer"),
    [("ok结束", "结束", "ok"), ("ok结果", "结束", "ok结果"), ("Human:", "Human:", ""), ("ok Human:", "Human:", "ok ")],
)
def test_streaming_holds_back_a_stop_string_of_several_tokens(text: str, stop: str, answer: str) -> None:
    request = CompletionRequest(model="agent", prompt="choose", stream=True, stop=(stop,))
    stream = _ChoiceStream(request, BytesTokenizer(), "answer", 0)
    token_ids = tuple(text.encode())
    streamed_texts = [change["text"] for token_id in token_ids for change in stream.add(Sampled(token_id, -0.5, ()))]
    last_changes = stream.end(Generation(token_ids, (-0.5,) * len(token_ids), answer, "stop", 0))
    assert "".join(streamed_texts + [change["text"] for change in last_changes]) == answer


async def test_plain_completions_stream_the_same_text_tokens_and_offsets(client: openai.AsyncOpenAI) -> None:
    options: dict[str, Any] = {"model": "agent", "prompt": "choose", "max_tokens": 12, "seed": 6, "n": 2, "logprobs": 0}
    whole: Any = await client.completions.create(**options)
    texts, reasons = ["", ""], [None, None]
    token_ids, offsets = ([list[int](), list[int]()] for _ in range(2))
    stream: Any = await client.completions.create(**options, stream=True, stream_options={"include_usage": True})
    async for chunk in stream:
        for choice in chunk.choices:
            texts[choice.index] += choice.text
            token_ids[choice.index] += choice.model_extra.get("token_ids", [])
            reasons[choice.index] = choice.finish_reason
            if choice.logprobs is not None:
                offsets[choice.index] += choice.logprobs.text_offset
        usage = chunk.usage
    assert texts == [choice.text for choice in whole.choices]
    assert token_ids == [choice.token_ids for choice in whole.choices]
    assert reasons == [choice.finish_reason for choice in whole.choices]
    assert offsets == [choice.logprobs.text_offset for choice in whole.choices]
    assert all(offset[-1] > 0 for offset in offsets)
    assert usage == whole.usage


async def test_plain_completions_stream_the_same_alternatives(client: openai.AsyncOpenAI) -> None:
    options: dict[str, Any] = {"model": "agent", "prompt": "choose", "max_tokens": 8, "seed": 3, "logprobs": 3}
    whole: Any = (await client.completions.create(**options)).choices[0].logprobs
    pieces: Any = [piece async for piece in await client.completions.create(**options, stream=True)]
    top_logprobs = [
        top_logprob for piece in pieces if (part := piece.choices[0].logprobs) for top_logprob in part.top_logprobs
    ]
    assert (top_logprobs, {len(top_logprob) for top_logprob in top_logprobs}) == (whole.top_logprobs, {3})


class Waiting:
    """A tokenizer that goes on only once somebody else has been answered."""

    def __init__(self, like: Any) -> None:
        self._like = like
        self.began, self.others_answered = threading.Event(), threading.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._like, name)

    def wait(self) -> None:
        self.began.set()
        assert self.others_answered.wait(timeout=120), "nobody was answered meanwhile"


class WaitingReader(Waiting):
    """Waits before it reads a text with an X in it."""

    def encode(self, text: str, **options: Any) -> Any:
        if "X" in text:
            self.wait()
        return self._like.encode(text, **options)


class WaitingWriter(Waiting):
    """Waits before it names a token."""

    def decode(self, token_ids: list[int], **options: Any) -> Any:
        self.wait()
        return self._like.decode(token_ids, **options)


SHORT = {"model": "agent", "prompt": "choose", "messages": MESSAGES, "max_tokens": 2}


async def ask_meanwhile(served: ServedModel, tokenizer: Waiting, path: str, body: Any) -> list[httpx.Response]:
    """Return the answers to a short question that was asked while the tokenizer waited, and to this one."""
    with serving(ServedModel("agent", served.sampler, tokenizer, serving=1)) as url:
        async with httpx.AsyncClient(timeout=120) as http:
            asking = asyncio.create_task(http.post(f"{url}/v1/{path}", json=body))
            await asyncio.to_thread(tokenizer.began.wait)
            answered = await http.post(f"{url}/v1/{path}", json=SHORT)
            tokenizer.others_answered.set()
            return [answered, await asking]


@pytest.mark.parametrize("path", ["chat/completions", "completions"])
async def test_others_are_answered_while_a_long_prompt_is_read(served: ServedModel, path: str) -> None:
    long = "X" * endpoint.LONG_BODY_BYTES
    body = {"model": "agent", "prompt": long, "messages": [{"role": "user", "content": long}]}
    answered, refused = await ask_meanwhile(served, WaitingReader(served.tokenizer), path, body)
    assert (answered.status_code, refused.status_code) == (200, 400)
    assert refused.json()["error"]["code"] == "context_length_exceeded"


@pytest.mark.parametrize("path", ["chat/completions", "completions"])
async def test_others_are_answered_while_a_long_answer_is_written(served: ServedModel, path: str) -> None:
    body = {**SHORT, "max_tokens": 65, "n": 32, "ignore_eos": True, "logprobs": 0 if path == "completions" else True}
    answered, answer = await ask_meanwhile(served, WaitingWriter(served.tokenizer), path, body)
    assert (answered.status_code, answer.status_code) == (200, 200)
    assert answer.json()["usage"]["completion_tokens"] == 32 * 65 > endpoint.LONG_ANSWER_TOKENS


async def test_several_prompts_are_answered_in_their_order(client: openai.AsyncOpenAI) -> None:
    options: dict[str, Any] = {"model": "agent", "max_tokens": 5, "seed": 3}
    both = await client.completions.create(**options, prompt=["choose", "a letter of it"], n=2)
    alone = [await client.completions.create(**options, prompt=prompt, n=2) for prompt in ("choose", "a letter of it")]
    assert [choice.text for choice in both.choices] == [choice.text for answer in alone for choice in answer.choices]
    assert [choice.index for choice in both.choices] == [0, 1, 2, 3]


async def test_one_batch_of_requests_is_answered_by_several_versions(
    client: openai.AsyncOpenAI, served: ServedModel
) -> None:
    before = served.sampler.steps
    extra = {"ignore_eos": True}
    answers = await asyncio.gather(
        *(
            client.chat.completions.create(
                model=f"agent@{i % 2}", messages=MESSAGES, max_tokens=40, seed=1, temperature=0, extra_body=extra
            )
            for i in range(8)
        )
    )
    assert [answer.model for answer in answers] == [f"agent@{i % 2}" for i in range(8)]
    texts = [answer.choices[0].message.content for answer in answers]
    assert (len(set(texts[::2])), len(set(texts[1::2])), texts[0] != texts[1]) == (1, 1, True)
    assert served.sampler.steps - before < 8 * 40 / 2
