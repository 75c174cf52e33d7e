"""A model at a service with the Tinker API, as `rollbus art-server` trains and serves it; the service is the fake."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, cast

import httpx
import pytest

from rollbus.schemas.errors import UnavailableError
from rollbus.schemas.records.delivery import PolicyDecision
from rollbus.trainer.art_server.hosted.model import HostedModel
from rollbus.trainer.art_server.sampler.requests import SamplingParameters
from rollbus.trainer.backends.model_settings import ModelOptions, ServiceSettings
from rollbus.trainer.backends.protocol import Backend
from rollbus.trainer.backends.tinker.memory import MemoryTinker
from rollbus.trainer.backends.tinker.service import SampledTokens, SamplingRequest
from rollbus.trainer.backends.tinker.settings import TinkerAccess
from tests.contracts.backend import MODEL, BackendContract, make_request, submit_and_wait

MESSAGES = [{"role": "user", "content": "say a letter"}]


@pytest.fixture
def service(tokenizer: Any) -> MemoryTinker:
    return MemoryTinker(vocabulary=len(tokenizer))


@pytest.fixture
async def backend(tmp_path: Path, tokenizer: Any, service: MemoryTinker) -> AsyncIterator[HostedModel]:
    tokenizer.save_pretrained(tmp_path / "tokenizer")
    settings = ServiceSettings(
        model=MODEL,
        base_model=tmp_path / "tokenizer",
        directory=tmp_path / "art",
        options=ModelOptions(keep_versions=2, max_tokens=64),
        tinker=TinkerAccess(url="http://unused", base_model="tiny", lora_rank=8),
    )
    model = HostedModel(settings, service)
    await model.start()
    yield model
    await model.close()


@pytest.fixture
async def ask(backend: HostedModel) -> AsyncIterator[Callable[..., Any]]:
    """Post to a route of the endpoint; return its answer's body."""
    async with httpx.AsyncClient(base_url=str(backend.base_url), timeout=60) as client:

        async def post(path: str = "/chat/completions", *, status: int = 200, **body: Any) -> Any:
            headers = {"rollbus-episode": body.pop("episode")} if "episode" in body else {}
            fields = {"model": MODEL, "logprobs": True, "max_tokens": 6, "seed": 5}
            answer = await client.post(path, json=fields | body, headers=headers)
            assert answer.status_code == status, answer.text
            return answer.json() if not body.get("stream") else answer.text

        yield post


class TestHostedModel(BackendContract):
    """The contract, with versions that are open for sampling."""

    @pytest.fixture
    def backend(self, backend: HostedModel) -> Backend:
        return backend


async def test_an_answer_has_token_ids_prompt_ids_and_log_probs_of_its_version(
    backend: HostedModel, service: MemoryTinker, ask: Callable[..., Any]
) -> None:
    for base in range(2):
        await submit_and_wait(backend, make_request(base))
    answers = {name: await ask(model=name, messages=MESSAGES) for name in (MODEL, "agent@0", "agent@1", "agent@2")}
    assert [answer["model"] for answer in answers.values()] == ["agent@0", "agent@0", "agent@1", "agent@2"]
    for version, name in enumerate(("agent@0", "agent@1", "agent@2")):
        state = service.find(backend.weights_tree.checkpoints[version])
        (choice,) = answers[name]["choices"]
        expected = [state.logits[token_id] - state.log_normaliser() for token_id in choice["token_ids"]]
        assert [entry["logprob"] for entry in choice["logprobs"]["content"]] == pytest.approx(expected)
        assert answers[name]["prompt_token_ids"]
        assert answers[name]["rollbus"] == {
            **answers[name]["rollbus"],
            "logprobs_mode": "raw",
        }


async def test_several_versions_answer_at_once(backend: HostedModel, ask: Callable[..., Any]) -> None:
    for base in range(4):
        await submit_and_wait(backend, make_request(base))
    answers = await asyncio.gather(*(ask(model=f"agent@{number % 5}", messages=MESSAGES, n=3) for number in range(10)))
    assert [answer["model"] for answer in answers] == [f"agent@{number % 5}" for number in range(10)]
    assert all(len(answer["choices"]) == 3 for answer in answers)
    assert set(backend.opened_versions()) >= {0}
    assert len(backend.opened_versions()) <= 3, "what serves, and the two that were asked for last"
    await ask(model="agent@9", messages=MESSAGES, status=404)


async def test_a_version_that_is_asked_for_often_closes_no_other(backend: HostedModel, ask: Callable[..., Any]) -> None:
    for base in range(3):
        await submit_and_wait(backend, make_request(base))
    for name in ("agent@1", "agent@2", "agent@2", "agent@2", "agent@0"):
        await ask(model=name, messages=MESSAGES)
    assert backend.opened_versions() == {0, 2}
    await ask(model="agent@1", messages=MESSAGES)
    await ask(model=MODEL, messages=MESSAGES, n=3)
    assert backend.opened_versions() == {0, 1}


async def test_an_answer_ends_with_the_token_that_completes_a_stop_string(
    ask: Callable[..., Any], tokenizer: Any
) -> None:
    whole = (await ask(messages=MESSAGES, max_tokens=12))["choices"][0]
    text = tokenizer.decode(whole["token_ids"][4:5])
    cut = (await ask(messages=MESSAGES, max_tokens=12, stop=[text]))["choices"][0]
    assert cut["finish_reason"] == "stop"
    assert cut["token_ids"] == whole["token_ids"][: len(cut["token_ids"])]
    assert text not in cut["message"]["content"]
    assert len(cut["logprobs"]["content"]) == len(cut["token_ids"]) <= 5


async def test_a_stop_string_is_found_after_an_end_that_is_ignored(backend: HostedModel, tokenizer: Any) -> None:
    token_ids = (tokenizer.eos_token_id, *tokenizer.encode("ABC", add_special_tokens=False))
    sampled = SampledTokens(token_ids, (-1.0,) * len(token_ids), stopped=False)
    parameters = SamplingParameters(max_tokens=8, stop=("B",), ignore_eos=True)
    sampler = backend._sampler
    assert sampler is not None
    answer = sampler._cut(sampled, parameters, 0, ())
    assert (answer.text, answer.finish_reason, len(answer.token_ids)) == ("A", "stop", 3)


async def test_a_stream_gives_what_the_whole_answer_gives(ask: Callable[..., Any]) -> None:
    whole = (await ask(messages=MESSAGES))["choices"][0]
    stream = await ask(messages=MESSAGES, stream=True)
    assert stream.rstrip().endswith("data: [DONE]")
    assert all(f'token_id:{token_id}"' in stream for token_id in whole["token_ids"])


async def test_a_prompt_is_scored(backend: HostedModel, service: MemoryTinker, ask: Callable[..., Any]) -> None:
    answer = await ask("/completions", prompt=[5, 6, 7], echo=True, max_tokens=0, logprobs=0)
    state = service.find(backend.weights_tree.checkpoints[0])
    expected = [state.logits[token_id] - state.log_normaliser() for token_id in (6, 7)]
    assert answer["choices"][0]["logprobs"]["token_logprobs"][1:] == pytest.approx(expected)


async def test_alternatives_are_refused_by_name(ask: Callable[..., Any]) -> None:
    refusal = await ask(messages=MESSAGES, top_logprobs=3, status=400)
    assert refusal["error"]["param"] == "top_logprobs"


async def test_a_canary_answers_its_share_of_the_episodes(backend: HostedModel, ask: Callable[..., Any]) -> None:
    await submit_and_wait(backend, make_request(0))
    decision = PolicyDecision(
        model=MODEL, run_id="main", number=1, action="canary", version=1, serving=0, canary=1, share=0.5, salt="s",
        reason="new", decided_at_ms=0,
    )  # fmt: skip
    await backend._use_decision(decision)
    answers = await asyncio.gather(
        *(ask(messages=MESSAGES, episode=f"e{number}", max_tokens=1) for number in range(40))
    )
    models = [answer["model"] for answer in answers]
    assert set(models) == {"agent@0", "agent@1"}
    assert 8 < models.count("agent@1") < 32
    assert (await ask(messages=MESSAGES))["model"] == "agent@0", "without an episode, what serves answers"


async def test_a_version_that_the_service_forgot_is_opened_again(
    backend: HostedModel, ask: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    failures = [UnavailableError("the service was restarted")]
    sampler = backend._sampler
    assert sampler is not None
    opened = sampler._samplers[0]
    sample = opened.sample

    async def fail_once(*arguments: Any) -> Any:
        if failures:
            raise failures.pop()
        return await sample(*arguments)

    monkeypatch.setattr(opened, "sample", fail_once)
    await ask(messages=MESSAGES, status=500)
    assert (await ask(messages=MESSAGES))["model"] == "agent@0"
    assert sampler._samplers[0] is not opened


async def test_a_request_that_fails_leaves_its_version_to_the_others(
    backend: HostedModel, service: MemoryTinker, ask: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    sampler = backend._sampler
    assert sampler is not None
    opened = sampler._samplers[0]
    sample, is_closed, may_answer, asked = opened.sample, asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def answer_late(prompt: Any, request: SamplingRequest) -> SampledTokens:
        if request.max_tokens == 1:
            raise UnavailableError("no answer in time")
        asked.set()
        await may_answer.wait()
        if is_closed.is_set():
            raise UnavailableError("the session is closed")
        return await sample(prompt, request)

    async def close() -> None:
        is_closed.set()

    monkeypatch.setattr(opened, "sample", answer_late)
    monkeypatch.setattr(opened, "close", close)
    other = asyncio.create_task(ask(messages=MESSAGES))
    await asked.wait()
    await ask(messages=MESSAGES, max_tokens=1, status=500)
    may_answer.set()
    assert (await other)["model"] == "agent@0"
    assert is_closed.is_set(), "the last request that uses it closes it"
    await ask(messages=MESSAGES)
    assert sampler._samplers[0] is not opened


async def test_versions_that_two_requests_find_unused_are_closed_once(backend: HostedModel) -> None:
    closed: list[str] = []

    class UnusedSampler:
        def __init__(self, name: str) -> None:
            self.name = name

        async def close(self) -> None:
            closed.append(self.name)
            await asyncio.sleep(0)

    sampler = backend._sampler
    assert sampler is not None
    sampler._users.update({cast(Any, UnusedSampler(name)): 0 for name in ("older", "newer")})
    await asyncio.gather(sampler._close_unused(), sampler._close_unused())
    assert closed == ["older", "newer"]
