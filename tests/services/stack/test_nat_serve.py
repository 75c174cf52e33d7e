"""A workflow of the NeMo Agent Toolkit in production: `nat serve` and `nat eval`, with one telemetry entry more.

As its user has it: the toolkit's own command in the folder in which `rollbus up` was said, many requests at once, and
verdicts from another process later. No settings file and no `rollbus finetune`.
"""

import asyncio
import copy
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from rollbus.local.process.ports import find_free_port
from rollbus.local.process.tether import tethered
from rollbus.schemas.records.events import EpisodeStarted, RewardReported, TurnRecorded
from rollbus.schemas.topics import EPISODE_EVENTS
from tests.console import ROLLBUS
from tests.installs import hide_art_plugin, own_environment, run
from tests.services.stack import test_first_step
from tests.services.stack.test_first_step import NewUser
from tests.waiting import wait_until

pytestmark = [pytest.mark.services, pytest.mark.timeout(600)]

user = test_first_step.user
NAT = Path(ROLLBUS).with_name("nat")
REQUESTS, AT_ONCE = 40, 20
"""More than one step takes, since a task's first attempts wait for others."""
ITEMS = 6
VERDICTS = """
import json, sys
import rollbus

rb = rollbus.init(bootstrap_servers=sys.argv[1], producer="shop")
for request, reward in json.load(sys.stdin).items():
    rb.feedback(alias=request, reward=reward, name="thumbs")
rb.close()
"""
"""It knows the requests by the ids that its own client gave them."""


@pytest.fixture(scope="module")
def workflow(user: NewUser, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A workflow as the page has it, with the model of this stack."""
    user.environment["PYTHONPATH"] = str(hide_art_plugin(tmp_path_factory.mktemp("site")))
    read_token = f"import rollbus; print(rollbus.read_token({user.model_url!r}))"
    token = run(sys.executable, "-c", read_token, cwd=user.folder).stdout.strip()
    model = {"_type": "openai", "model_name": "agent", "base_url": user.model_url, "api_key": token, "max_tokens": 2}
    return {
        "general": {"telemetry": {"tracing": {"rollbus": {"_type": "rollbus"}}}},
        "llms": {"agent": model},
        "workflow": {"_type": "chat_completion", "llm_name": "agent", "system_prompt": "Shop."},
    }


@contextmanager
def serve_workflow(user: NewUser, workflow: dict[str, Any]) -> Iterator[str]:
    """Serve the workflow by the toolkit's command, with settings that are next to it; yield its address."""
    (folder := user.folder / "workflows").mkdir()
    document = copy.deepcopy(workflow)
    document["general"]["telemetry"]["tracing"]["rollbus"]["settings_file"] = "services.yaml"
    (folder / "serve.yml").write_text(yaml.safe_dump(document))
    (folder / "services.yaml").write_text(yaml.safe_dump({"kafka": {"bootstrap_servers": user.kafka}}))
    port = find_free_port()
    words = ("serve", "--config_file", "workflows/serve.yml", "--host", "127.0.0.1", "--port", str(port))
    with (user.folder / "serve.log").open("wb") as log:
        command, environment = [*tethered(), str(NAT), *words], own_environment() | user.environment
        server = subprocess.Popen(command, cwd=user.folder, env=environment, stdout=log, stderr=log)
    url = f"http://127.0.0.1:{port}"

    def answers() -> bool:
        assert server.poll() is None, user.logs()
        try:
            return httpx.get(f"{url}/health").status_code == 200
        except httpx.HTTPError:
            return False

    try:
        wait_until(answers, f"it does not answer:\n{user.logs()}", within_s=240)
        yield url
    finally:
        server.terminate()
        server.wait(120)


async def ask_all(url: str) -> None:
    """Ask everything, so many requests at once; every second answer is streamed."""
    async with httpx.AsyncClient(timeout=120.0) as client, asyncio.TaskGroup() as tasks:
        places = asyncio.Semaphore(AT_ONCE)

        async def ask(number: int) -> None:
            headers = {"workflow-run-id": f"order-{number}", "conversation-id": f"talk-{number}"}
            messages = [{"role": "user", "content": f"Ticket {number}: where is it?"}]
            body = {"messages": messages, "stream": number % 2 == 0}
            async with places:
                answer = await client.post(f"{url}/v1/chat/completions", json=body, headers=headers)
            assert answer.status_code == 200, answer.text

        for number in range(REQUESTS):
            tasks.create_task(ask(number))


@pytest.fixture(scope="module")
def verdicts(user: NewUser, workflow: dict[str, Any]) -> dict[str, float]:
    """What each request's answer was worth, by its episode: served, recorded, and reported from another process."""
    with serve_workflow(user, workflow) as url:
        asyncio.run(ask_all(url))
    events = user.read(EPISODE_EVENTS)
    starts = [event for event in events if isinstance(event, EpisodeStarted) and event.task == "chat_completion"]
    orders = {event.episode_id: event.labels["workflow_run_id"] for event in starts}
    assert sorted(orders.values()) == sorted(f"order-{number}" for number in range(REQUESTS))
    talks = [event.labels["conversation_id"].replace("talk", "order") for event in starts]
    assert talks == list(orders.values()), "a streamed answer is of its conversation too"
    turns = [event for event in events if isinstance(event, TurnRecorded) and event.episode_id in orders]
    assert len(turns) == REQUESTS
    for turn in turns:
        assert turn.trainable, turn.untrainable_reason
        number = orders[turn.episode_id].removeprefix("order-")
        assert (turn.added_messages[-1].content or "").startswith(f"Ticket {number}:"), "of its own request"
    worth = {order: float(int(order.removeprefix("order-")) % 3 == 0) for order in orders.values()}
    reported = subprocess.run(
        [sys.executable, "-c", VERDICTS, user.kafka],
        input=json.dumps(worth), text=True, capture_output=True, cwd=user.folder, env=own_environment(), timeout=120,
    )  # fmt: skip
    assert reported.returncode == 0, reported.stderr
    return {episode_id: worth[order] for episode_id, order in orders.items()}


def test_requests_at_once_are_trained_by_verdicts_that_come_later(user: NewUser, verdicts: dict[str, float]) -> None:
    with user.running("worker", "trainer"):
        trained = wait_until(lambda: user.trained(verdicts), f"nothing was trained:\n{user.logs()}", within_s=240)
    assert trained.items() <= verdicts.items()


def test_the_toolkits_configuration_trains_on_the_same_traffic(
    user: NewUser, workflow: dict[str, Any], verdicts: dict[str, float]
) -> None:
    with user.running("worker"):  # which finds the episodes that the verdicts name
        wait_until(
            lambda: sum(isinstance(event, RewardReported) for event in user.read(EPISODE_EVENTS)) >= len(verdicts),
            f"the verdicts are not with their episodes:\n{user.logs()}",
        )
    stack = {f"{name}_port": port for name, port in user.ports.items()}
    (user.folder / "stack.yaml").write_text(yaml.safe_dump({"stack": stack}))
    backend = {"ip": "127.0.0.1", "port": user.ports["art"], "name": "agent", "base_model": "base"}
    plain = {name: workflow[name] for name in ("llms", "workflow")} | {
        "trajectory_builders": {"log": {"_type": "rollbus_log_builder", "source": "log", "tasks": ["chat_completion"]}},
        "trainer_adapters": {"art": {"_type": "openpipe_art_trainer_adapter", "backend": backend}},
        "trainers": {"art": {"_type": "openpipe_art_trainer"}},
        "finetuning": {
            "enabled": True,
            "trainer": "art",
            "trajectory_builder": "log",
            "trainer_adapter": "art",
            "reward_function": {"name": "thumbs"},
            "output_dir": "output",
        },
        "rollbus": {"run_id": "from-log", "data_dir": "state", "settings_file": "stack.yaml"},
    }
    plain["trajectory_builders"]["log"]["settings_file"] = "stack.yaml"
    (user.folder / "log.yml").write_text(yaml.safe_dump(plain))
    finetuned = user.rollbus("finetune", "--config_file", "log.yml", check=False)
    assert finetuned.returncode == 0, finetuned.stdout[-6000:] + finetuned.stderr[-3000:] + user.logs()
    (line,) = (user.folder / "output" / "training_metrics.jsonl").read_text().splitlines()
    row = json.loads(line)
    assert row["num_trajectories"] == REQUESTS
    assert row["step_trained"] > 0
    assert row["avg_reward"] == pytest.approx(sum(verdicts.values()) / REQUESTS)


@contextmanager
def page(user: NewUser) -> Iterator[Callable[..., list[dict[str, Any]]]]:
    """Run the page by its command; yield what asks it as a browser does, by a question's name and values."""
    command, environment = [*tethered(), ROLLBUS, "ui", "--port", "0"], own_environment() | user.environment
    server = subprocess.Popen(command, cwd=user.folder, env=environment, stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    try:
        address, _, token = server.stdout.readline().split()[0].partition("#token=")
        key = {"authorization": f"Bearer {token}"}

        def ask(question: str, **values: str) -> list[dict[str, Any]]:
            answer = httpx.get(f"{address}api/ask/{question}", params=values, headers=key, timeout=60.0)
            assert answer.status_code == 200, answer.text
            table = answer.json()
            return [dict(zip(table["columns"], row, strict=True)) for row in table["rows"]]

        yield ask
    finally:
        server.terminate()
        server.wait(120)
        server.stdout.close()


def test_an_evaluation_by_the_toolkits_command_is_in_sql_and_on_the_page(
    user: NewUser, workflow: dict[str, Any]
) -> None:
    rows = [{"id": number, "question": f"Ticket {number}: where is it?", "answer": ""} for number in range(ITEMS)]
    (user.folder / "held_out.json").write_text(json.dumps(rows))
    document = copy.deepcopy(workflow)
    document["general"]["telemetry"]["tracing"]["rollbus"]["task"] = "held-out"
    document["eval"] = {
        "general": {"output_dir": "results", "dataset": {"_type": "json", "file_path": "held_out.json"}},
        "evaluators": {"speed": {"_type": "avg_llm_latency"}},
    }
    (user.folder / "eval.yml").write_text(yaml.safe_dump(document))

    def answer(statement: str) -> list[dict[str, Any]]:
        answered = user.rollbus("sql", "query", "-o", "json", statement, check=False)
        return [json.loads(line) for line in answered.stdout.splitlines() if line.startswith("{")]

    with user.running("worker", "sink"), page(user) as ask:
        run(NAT, "eval", "--config_file", "eval.yml", cwd=user.folder, **user.environment)
        evaluations = "SELECT name, model, policy_version, episodes, metrics['score'] AS score FROM evaluations FINAL"
        (evaluation,) = wait_until(lambda: answer(evaluations), f"it is not in SQL:\n{user.logs()}")
        rewards = """
            SELECT episode_id, value FROM rewards FINAL WHERE name = 'speed' AND source = 'evaluator'
            AND episode_id IN (SELECT episode_id FROM episodes FINAL WHERE task = 'held-out')
        """
        wait_until(lambda: len(answer(rewards)) == ITEMS, f"not all rewards are in SQL:\n{user.logs()}")
        value_by_episode = {row["episode_id"]: row["value"] for row in answer(rewards)}
        moments = ask("timeline", run="main", model="agent")
        shown_rewards = {episode_id: ask("rewards_of_episode", episode=episode_id) for episode_id in value_by_episode}
    outputs = json.loads((user.folder / "results" / "speed_output.json").read_text())["eval_output_items"]
    scores = sorted(item["score"] for item in outputs)
    assert sorted(value_by_episode.values()) == pytest.approx(scores)
    assert (evaluation["name"], evaluation["model"], evaluation["episodes"]) == ("speed", "agent", ITEMS)
    assert evaluation["score"] == pytest.approx(sum(scores) / ITEMS)
    (point,) = (moment for moment in moments if moment["name"] == "speed")
    assert (point["kind"], point["metric"], point["version"]) == ("line", "score", evaluation["policy_version"])
    assert point["value"] == pytest.approx(evaluation["score"])
    for episode_id, value in value_by_episode.items():
        (report,) = shown_rewards[episode_id]
        assert (report["name"], report["value"], report["source"]) == ("speed", value, "evaluator")
