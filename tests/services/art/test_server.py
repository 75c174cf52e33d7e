"""A real art-server, asked by the trainer's client and by openai's."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Sequence
from typing import Any

import httpx
import openai
import pytest

from rollbus.schemas.records.tokens import encode_logprobs, encode_token_ids
from rollbus.trainer.backends.art_client import ArtClient
from rollbus.trainer.backends.protocol import TrainRequest, TrainTrajectory, TurnTokens
from rollbus.trainer.train_config import TrainConfig
from tests.services.art import art_0_5_7
from tests.services.art.fixtures import MODEL, ArtServer, made_up_batch

pytestmark = pytest.mark.services


@pytest.fixture
async def client(art_server: ArtServer) -> AsyncIterator[ArtClient]:
    art_client = art_server.client()
    yield art_client
    await art_client.close()


MESSAGES: list[Any] = [{"role": "user", "content": "choose a letter"}]


async def sampled(server: ArtServer, model: str = MODEL, *, count: int = 8, **changed: Any) -> list[Any]:
    """Answers with ids and log-probs, asked for all at once."""
    async with openai.AsyncOpenAI(base_url=server.model_url, api_key="none") as client:
        options: dict[str, Any] = {"max_tokens": 6, "logprobs": True, **changed}
        return await asyncio.gather(
            *(client.chat.completions.create(model=model, messages=MESSAGES, seed=i, **options) for i in range(count))
        )


def turn_of(answer: Any) -> TurnTokens:
    choice = answer.choices[0]
    return TurnTokens(
        encode_token_ids(answer.prompt_token_ids),
        encode_token_ids(choice.token_ids),
        encode_logprobs(entry.logprob for entry in choice.logprobs.content),
        policy_version=int(answer.model.partition("@")[2]),
    )


async def batch_of(server: ArtServer, name: str, answers: list[Any], base: int) -> TrainRequest:
    """One group; every other answer wins."""
    trajectories = tuple(
        TrainTrajectory(f"{name}-{i}", name, (-1.0) ** i, float(i % 2 == 0), (turn_of(answer),))
        for i, answer in enumerate(answers)
    )
    return TrainRequest(name, "main", MODEL, base, trajectories, TrainConfig(learning_rate=1e-3))


async def test_stale_turns_are_trained_against_their_sampled_log_probs(
    art_server: ArtServer, client: ArtClient
) -> None:
    base = (await client.versions()).head
    answers = await sampled(art_server, f"{MODEL}@{base}")
    moved = await client.wait(await client.submit(made_up_batch(f"moves-{base}", base, learning_rate=0.01)), 0.1)
    late = await batch_of(art_server, f"late-{base}", answers, moved.version)
    result = await client.wait(await client.submit(late), 0.1)
    assert result.metrics["logprob_difference_max"] > 1e-3
    assert result.metrics["effective_sample_size"] < 1


async def test_an_old_version_answers_as_before_the_update(art_server: ArtServer, client: ArtClient) -> None:
    base = (await client.versions()).head
    before = await sampled(art_server, f"{MODEL}@{base}", count=3)
    result = await client.wait(await client.submit(made_up_batch(f"old-{base}", base)), 0.1)
    await client.promote(result.version)
    again = await sampled(art_server, f"{MODEL}@{base}", count=3)
    newer = await sampled(art_server, count=3)
    assert [answer.choices[0].token_ids for answer in again] == [answer.choices[0].token_ids for answer in before]
    assert {answer.model for answer in again} == {f"{MODEL}@{base}"}
    assert {answer.model for answer in newer} == {f"{MODEL}@{result.version}"}
    versions = await client.versions()
    assert (versions.head, versions.serving) == (result.version, result.version)


async def test_version_zero_is_read_again_when_asked_for(art_server: ArtServer, client: ArtClient) -> None:
    for number in range(7):  # more than stay loaded
        base = (await client.versions()).head
        await client.wait(await client.submit(made_up_batch(f"push-{base}-{number}", base)), 0.05)
    loaded = {version.version for version in (await client.versions()).known if version.loaded}
    assert 0 not in loaded
    (answer,) = await sampled(art_server, f"{MODEL}@0", count=1)
    assert answer.model == f"{MODEL}@0"


async def test_a_client_that_goes_away_changes_nothing(art_server: ArtServer, client: ArtClient) -> None:
    base = (await client.versions()).head
    request = made_up_batch(f"gone-{base}", base, groups=16)
    other = art_server.client()
    await other.submit(request)
    await other.close()
    result = await client.wait(request.batch_hash, 0.05)
    assert result.version == base + 1


async def test_capabilities_name_the_endpoint_and_the_limits(art_server: ArtServer, client: ArtClient) -> None:
    capabilities = await client.capabilities()
    assert capabilities.backend == "art-server"
    assert (capabilities.max_sequence_tokens, capabilities.inference_url) == (128, art_server.model_url)
    assert await client.is_healthy()


async def test_serving_goes_on_during_updates(art_server: ArtServer, client: ArtClient) -> None:
    base = (await client.versions()).head
    update = asyncio.create_task(_train(client, made_up_batch(f"busy-{base}", base, groups=64, size=8)))
    answers = 0
    while not update.done():
        answers += len(await sampled(art_server, count=4))
    assert (await update).version == base + 1
    assert answers > 0


async def _train(client: Any, request: TrainRequest) -> Any:
    return await client.wait(await client.submit(request), 0.05)


async def test_a_program_for_art_0_5_7_trains_with_that_releases_client(
    art_server: ArtServer, client: ArtClient
) -> None:
    client_report = await asyncio.to_thread(art_0_5_7.run_client, art_server.url)
    assert ".make/art-0.5.7/" in client_report["release"]
    assert client_report["inference"] == [art_server.model_url, "default"]
    (line,) = client_report["lines"]
    assert line["rendered_prompts"] == 8
    assert line["loss/grad_norm"] > 0
    assert client_report["after"] == client_report["before"] + 2
    assert client_report["answered_by"] == f"{MODEL}@{client_report['after']}"
    kept_versions = [known_version.version for known_version in (await client.versions()).known]
    newest = client_report["after"]
    assert kept_versions == sorted({0, newest - 2, newest - 1, newest}), (
        "its own deletes spare what serves, its parent and what served before"
    )
    beside = {path.name for path in art_server.checkpoints.parent.iterdir()}
    assert not beside & {"tensors", "reported"}, "conversations stay on disk as token ids or as the client told them"


async def test_rendered_prompts_are_marked_and_never_mixed_with_recorded_ones(
    art_server: ArtServer, client: ArtClient
) -> None:
    rendered = await _old_trajectories(art_server)
    recorded_rows = await _recorded_rows(art_server, range(4))

    async def train(rows: list[dict[str, Any]]) -> httpx.Response:
        body = {"model": {"name": MODEL}, "trajectory_groups": [{"trajectories": rows}]}
        async with httpx.AsyncClient(base_url=art_server.url, timeout=120) as http:
            return await http.post("/_train_model", json=body)

    mixed = await train([*rendered[:2], *recorded_rows[2:]])
    assert mixed.status_code == 409
    assert "never mixed" in mixed.json()["error"]["message"]
    for rows, count in ((recorded_rows, 0), (rendered, 4)):
        assert (await train(rows)).json()["rendered_prompts"] == count
        head = (await client.versions()).head
        provenance = json.loads((art_server.checkpoints / f"{head:04d}" / "rollbus.json").read_bytes())
        assert provenance["rendered_prompts"] == count


async def _recorded_rows(server: ArtServer, rewards: Sequence[float], **options: Any) -> list[dict[str, Any]]:
    """Rows of a released client that brings its prompt ids, one per reward."""
    rows = []
    for reward, answer in zip(rewards, await sampled(server, count=len(rewards), **options), strict=True):
        choice = {**answer.choices[0].model_dump(), "prompt_token_ids": answer.prompt_token_ids}
        rows.append({"messages_and_choices": [*MESSAGES, choice], "reward": reward})
    return rows


async def _train_as_released(server: ArtServer, *groups: list[dict[str, Any]]) -> dict[str, Any]:
    body = {"model": {"name": MODEL}, "trajectory_groups": [{"trajectories": rows} for rows in groups]}
    async with httpx.AsyncClient(base_url=server.url, timeout=120) as http:
        answer = (await http.post("/_train_model", json=body)).text.splitlines()
    (line,) = answer
    return dict(json.loads(line))


async def test_trajectories_that_art_would_mistrain_are_left_out(art_server: ArtServer, client: ArtClient) -> None:
    before = (await client.versions()).head
    long, *rows = await _recorded_rows(art_server, (9.0, 0.0, 1.0))
    long["messages_and_choices"][-1]["prompt_token_ids"] *= 30
    flat = await _recorded_rows(art_server, (1e6 / 3, 1e6 / 3 + 1e-9))
    nothing = await _train_as_released(art_server, flat)
    assert nothing == {"num_gradient_steps": 0, "rendered_prompts": 0, "dropped_no_signal": 2}
    assert (await client.versions()).head == before
    line = await _train_as_released(art_server, [long, *rows], flat)
    assert (line["num_gradient_steps"], line["dropped_overlong"], line["dropped_no_signal"]) == (1, 1, 2)
    assert line["data/step_num_trajectories"] == 2


async def test_concurrent_calls_of_released_clients_are_consecutive_updates(
    art_server: ArtServer, client: ArtClient
) -> None:
    before = (await client.versions()).head
    rows = await _recorded_rows(art_server, (0.0, 1.0, 0.0, 1.0))
    lines = await asyncio.gather(*(_train_as_released(art_server, rows) for _ in range(2)))
    assert [line["num_gradient_steps"] for line in lines] == [1, 1]
    parent_by_version = {
        known_version.version: known_version.parent for known_version in (await client.versions()).known
    }
    assert (parent_by_version[before + 1], parent_by_version[before + 2]) == (before, before + 1)
    assert (await client.versions()).head == before + 2


async def test_a_released_client_trains_from_where_an_operator_rolled_back_to(own_art_server: ArtServer) -> None:
    own_art_server.start()
    client = own_art_server.client()
    for base in range(2):
        await client.wait(await client.submit(made_up_batch(f"before-{base}", base)), 0.05)
    await client.promote(1, rollback=True)
    assert await _step_head_and_serving(own_art_server, client) == (1, 1, 1)
    line = await _train_as_released(own_art_server, await _recorded_rows(own_art_server, (0.0, 1.0)))
    assert line["num_gradient_steps"] == 1
    versions = await client.versions()
    assert (versions.head, versions.serving) == (3, 3)
    assert [version.parent for version in versions.known] == [None, 0, 1, 1]
    await client.close()


async def _old_trajectories(server: ArtServer) -> list[dict[str, Any]]:
    answers = await sampled(server, count=4)
    rows = []
    for reward, answer in enumerate(answers):
        choice = answer.choices[0].model_dump()
        choice.pop("token_ids")
        rows.append({"messages_and_choices": [*MESSAGES, choice], "reward": float(reward), "metrics": {}})
    return rows


@pytest.mark.parametrize(
    ("method", "path", "body", "says"),
    [
        ("POST", "/rollbus/v1/serving", "{", "not JSON"),
        ("POST", "/rollbus/v1/serving", '{"version": true}', "version must be an integer"),
        ("GET", "/rollbus/v1/batches/any?wait_s=long", "", "wait_s must be a number"),
        ("POST", "/_get_step", '{"name": "other"}', "trains 'agent', not 'other'"),
        ("POST", "/_train_model", "[]", "must be a JSON object"),
        ("POST", "/_train_model", "{}", "field model must be a JSON object"),
        ("POST", "/_train_model", '{"model": {"name": "agent"}}', "field trajectory_groups must be a JSON array"),
        ("POST", "/_train_model", '{"model": {"name": "agent"}, "trajectory_groups": [1]}', "group 0 must be"),
        ("POST", "/_log", '{"model": {"name": "agent"}}', "field trajectory_groups"),
        ("POST", "/_delete_checkpoint_files", '{"name": "agent", "steps_to_keep": ["x"]}', "must be integers"),
    ],
)
async def test_a_clients_mistake_is_reported_as_the_clients(
    art_server: ArtServer, method: str, path: str, body: str, says: str
) -> None:
    async with httpx.AsyncClient(base_url=art_server.url) as http:
        answer = await http.request(method, path, content=body, headers={"content-type": "application/json"})
    error = answer.json()["error"]
    assert (answer.status_code < 500, error["retriable"]) == (True, False)
    assert says in error["message"]


async def test_only_health_is_shown_without_the_bearer_token(own_art_server: ArtServer) -> None:
    own_art_server.options = {"token": "secret"}
    own_art_server.start()
    control, model = own_art_server.url, own_art_server.model_url
    async with httpx.AsyncClient() as http:
        for url in (f"{control}/rollbus/v1/capabilities", f"{control}/v1/models", f"{model}/models"):
            replies = [(await http.get(url, headers={"authorization": f"Bearer {key}"})) for key in ("wrong", "secret")]
            assert [(await http.get(url)).status_code, *(reply.status_code for reply in replies)] == [401, 401, 200], (
                url
            )
        health = [await http.get(f"{control}/{path}") for path in ("health", "healthcheck")]
    assert ([answer.status_code for answer in health], health[1].json()) == ([200, 200], {"status": "ok"})


@pytest.mark.parametrize(("point", "kept_version"), [("checkpoint", 0), ("published", 1), ("recorded", 1)])
async def test_a_crash_in_a_released_clients_update_keeps_step_and_head_equal(
    own_art_server: ArtServer, point: str, kept_version: int
) -> None:
    server = own_art_server
    server.start()
    rows = await _recorded_rows(server, (0.0, 1.0))
    server.stop()
    server.start(die_at=point)
    with contextlib.suppress(httpx.HTTPError):
        await _train_as_released(server, rows)
    server.wait_until_dead()
    server.start()
    client = server.client()
    assert await _step_head_and_serving(server, client) == (kept_version, kept_version, kept_version)
    assert (await sampled(server, count=1))[0].model == f"{MODEL}@{kept_version}"
    assert (await _train_as_released(server, rows))["num_gradient_steps"] == 1
    assert [known_version.parent for known_version in (await client.versions()).known] == [None, 0, 1][
        : kept_version + 2
    ]
    assert await _step_head_and_serving(server, client) == (kept_version + 1, kept_version + 1, kept_version + 1)
    await client.close()


async def _step_head_and_serving(server: ArtServer, client: ArtClient) -> tuple[int, int, int]:
    async with httpx.AsyncClient(base_url=server.url) as http:
        step = (await http.post("/_get_step", json={"name": MODEL})).json()
    versions = await client.versions()
    return step, versions.head, versions.serving
