"""Tools through the openai client, by a model that was taught to call one: whole, streamed, and refused."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import openai
import pytest
import torch

from rollbus.trainer.art_server.endpoint.endpoint import ServedModel
from rollbus.trainer.art_server.endpoint.tokenizer import render_chat
from rollbus.trainer.art_server.model.model import head, trunk
from rollbus.trainer.art_server.sampler.sampler import Sampler
from tests.models import create_model, load_model
from tests.trainer.art_server.conftest import SMALL, serving

TOOLS: list[Any] = [{"type": "function", "function": {"name": "look", "parameters": {"at": "number"}}}]
ASK: list[Any] = [{"role": "user", "content": "look"}]
SAID = 'I will.\n<tool_call>\n{"name": "look", "arguments": {"at": 3}}\n</tool_call>'


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory, tokenizer: Any) -> Iterator[openai.OpenAI]:
    config = replace(SMALL, max_tokens=256)
    model, _ = load_model(create_model(tmp_path_factory.mktemp("tools") / "base", config, tokenizer, seed=3))
    teach(model, render_chat(tokenizer, ASK, TOOLS), [*tokenizer.encode(SAID), tokenizer.eos_token_id])
    sampler = Sampler(config, tokenizer, max_rows=4)
    sampler.load(0, model)
    with (
        serving(ServedModel("agent", sampler, tokenizer, 0)) as url,
        openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as openai_client,
    ):
        yield openai_client
    sampler.close()


def teach(model: Any, prompt: list[int], answer: list[int]) -> None:
    """Learn one answer by heart."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    token_ids, target_ids = torch.tensor([[*prompt, *answer]]), torch.tensor(answer)
    for _ in range(120):
        logits = head(model, trunk(model, token_ids[:, :-1])[0, len(prompt) - 1 :])
        loss = torch.nn.functional.cross_entropy(logits, target_ids)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        if float(loss.detach()) < 0.01:
            break


def asked(**changed: Any) -> dict[str, Any]:
    return {"model": "agent", "messages": ASK, "tools": TOOLS, "temperature": 0, "max_tokens": 80, **changed}


def test_a_sampled_call_becomes_a_tool_call_and_its_tokens_stay(client: openai.OpenAI, tokenizer: Any) -> None:
    answer = client.chat.completions.create(**asked(logprobs=True))
    (choice,) = answer.choices
    assert choice.message.content == "I will."
    (call,) = choice.message.tool_calls or []
    assert call.type == "function"
    assert (call.function.name, call.function.arguments) == ("look", '{"at": 3}')
    assert choice.finish_reason == "tool_calls"
    extra: Any = choice.model_extra
    assert tokenizer.decode(extra["token_ids"]) == f"{SAID}<|im_end|>"


def test_a_streamed_call_is_the_same_call_and_shows_no_piece_of_its_tags(client: openai.OpenAI) -> None:
    whole = client.chat.completions.create(**asked()).choices[0].message
    calls: list[Any] = []
    content, reasons = "", []
    for chunk in client.chat.completions.create(**asked(stream=True)):
        for choice in chunk.choices:
            content += choice.delta.content or ""
            calls += choice.delta.tool_calls or []
            reasons.append(choice.finish_reason)
    assert content == whole.content
    (call,) = calls
    assert call.function is not None
    assert (call.index, call.type, call.function.name, call.function.arguments) == (0, "function", "look", '{"at": 3}')
    assert call.id
    assert reasons[-1] == "tool_calls"


def test_the_next_turn_extends_the_tokens_of_the_call_exactly(client: openai.OpenAI) -> None:
    """So the turns of an agent with tools are one history to train on."""
    first: Any = client.chat.completions.create(**asked(logprobs=True))
    message = first.choices[0].message.model_dump(exclude_none=True)
    tool = {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "a door"}
    second: Any = client.chat.completions.create(**asked(messages=[*ASK, message, tool], logprobs=True, max_tokens=2))
    shown = [*first.prompt_token_ids, *first.choices[0].token_ids]
    assert second.prompt_token_ids[: len(shown)] == shown


def test_without_tools_or_with_none_to_choose_the_text_is_left_alone(client: openai.OpenAI) -> None:
    prompt_with_tools = client.chat.completions.create(**asked(max_tokens=1)).usage
    for changed in ({"tool_choice": "none"}, {"tools": openai.omit}):
        answer = client.chat.completions.create(**asked(max_tokens=1, **changed))
        assert answer.choices[0].message.tool_calls is None
        assert answer.usage is not None
        assert prompt_with_tools is not None
        assert answer.usage.prompt_tokens < prompt_with_tools.prompt_tokens


@pytest.mark.parametrize(
    ("changed", "param"),
    [
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": {"type": "function", "function": {"name": "look"}}}, "tool_choice"),
        ({"tools": [{"name": "look"}]}, "tools"),
        ({"extra_body": {"functions": [{"name": "look"}]}}, "functions"),
        ({"extra_body": {"guided_json": {}, "guided_regex": "a"}}, "guided_regex"),
    ],
)
def test_an_option_that_would_force_tokens_is_refused_by_name(
    client: openai.OpenAI, changed: dict[str, Any], param: str
) -> None:
    with pytest.raises(openai.BadRequestError) as refusal:
        client.chat.completions.create(**asked(**changed))
    assert str(refusal.value.param).startswith(param)
