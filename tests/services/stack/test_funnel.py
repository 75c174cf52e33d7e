"""What a user reads of episodes that come to nothing: in `rollbus status`, in its JSON and on the page."""

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from rollbus.consumers.clickhouse.store.client import ClickHouse
from rollbus.consumers.clickhouse.store.migrator import migrate
from rollbus.consumers.clickhouse.store.settings import ClickHouseSettings
from tests.builders import make_started
from tests.health.situations import RUNS, SCORING, SENTENCES, TRAINER, write_situations
from tests.installs import own_environment
from tests.services.stack.health_world import World, make_world, send_records
from tests.web import QuietHandler, serve

pytestmark = pytest.mark.services


def ask_page(world: World) -> dict[str, Any]:
    """Return what the page shows of health: the answer that it is drawn from."""
    page = world.start("ui", "ui", "--port", "0", stdout=subprocess.PIPE)
    assert page.stdout is not None
    with page.stdout:
        address = page.stdout.readline().decode().split()[0]
    answer: dict[str, Any] = httpx.get(f"{address.split('#')[0]}api/health", timeout=60).json()
    return answer


def test_each_situation_is_reported_by_status_and_by_the_page(
    tmp_path: Path, kafka: str, clickhouse: tuple[str, int], namespace: str
) -> None:
    with make_world(tmp_path, kafka, clickhouse, namespace, runs=RUNS, scoring=SCORING, trainer=TRAINER) as world:
        world.rollbus("topics", "create")
        settings = ClickHouseSettings(host=clickhouse[0], port=clickhouse[1], database=world.database)
        migrate(settings)
        client = ClickHouse(settings)
        write_situations(client, namespace, round(time.time() * 1000))
        client.close()
        status_text = " ".join(world.rollbus("status", check=False, COLUMNS="2000").stdout.split())
        answer = world.rollbus("status", "--json", check=False)
        assert answer.returncode == 1
        texts = {
            "status": status_text,
            "json": sentences(json.loads(answer.stdout)),
            "page": sentences(ask_page(world)),
        }
    missing = [(name, where) for name, words in SENTENCES.items() for where, text in texts.items() if words not in text]
    assert missing == [], texts["json"]
    assert "cannot train" in texts["json"]
    assert "'next_turn'" not in texts["json"], "nobody can report a user's silence earlier"


def sentences(answer: dict[str, Any]) -> str:
    """Return every sentence of the funnels and the verdict, one a line."""
    lines = [answer["verdict"]["text"]]
    for funnel in answer["funnels"]:
        lines += [funnel["verdict"], (funnel["unassembled"] or {}).get("sentence", "")]
        lines += [f"{notice['what']} → {notice['remedy']}" for notice in funnel["notices"]]
    return "\n".join(lines)


def test_a_namespace_with_data_and_no_process_is_not_well(
    tmp_path: Path, kafka: str, clickhouse: tuple[str, int], namespace: str
) -> None:
    with make_world(tmp_path, kafka, clickhouse, namespace) as world:
        nothing = world.rollbus("status", check=False)
        assert nothing.returncode == 1
        assert "the namespace has no topics on this broker" in " ".join(nothing.stdout.split())
        world.rollbus("topics", "create")
        empty = world.rollbus("status")
        assert "nothing is recorded yet, and no process runs" in empty.stdout
        assert "the numbers are counted in ClickHouse" in " ".join(empty.stdout.split())
        send_records(kafka, f"{namespace}episode-events", [make_started("e1")])
        completed = world.rollbus("status", check=False)
        assert completed.returncode == 1
        assert "no process lives, and episode-events has data" in " ".join(completed.stdout.split())
        assert "no_process" in [problem["alarm"] for problem in world.health()["health"]["problems"]]


AGENT = """
import sys
import rollbus
from openai import OpenAI

url, kafka, namespace = sys.argv[1:]
rb = rollbus.init(bootstrap_servers=kafka, namespace=namespace, producer="shop-agent")
client = rb.wrap(OpenAI(base_url=url, api_key="none"))
for number in range(10):
    with rb.episode(task="ticket", example_id=f"ticket-{number}"):
        messages = [{"role": "user", "content": f"Ticket {number}: where is it?"}]
        client.chat.completions.create(model="gpt-4o", messages=messages)
rb.close()
"""
"""README's snippet."""


class ServerWithoutIds(QuietHandler):
    """Answers as a provider that gives no token ids and refuses to be asked for them."""

    def do_POST(self) -> None:
        self.read_body()
        message = {"role": "assistant", "content": "On its way."}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        usage = {"prompt_tokens": 9, "completion_tokens": 4, "total_tokens": 13}
        self.answer({"id": "c", "object": "chat.completion", "created": 1, "model": "gpt-4o", "choices": [choice],
                     "usage": usage})  # fmt: skip


def test_the_funnel_names_a_server_without_token_ids(
    tmp_path: Path, kafka: str, clickhouse: tuple[str, int], namespace: str
) -> None:
    with make_world(tmp_path, kafka, clickhouse, namespace) as world, serve(ServerWithoutIds) as url:
        world.rollbus("topics", "create")
        world.start("worker", "worker", "run")
        world.start("sink", "sink", "run")
        command = [sys.executable, "-c", AGENT, f"{url}/v1", kafka, namespace]
        subprocess.run(command, cwd=tmp_path, env=own_environment(), check=True, timeout=120)

        def is_told(answer: dict[str, Any]) -> bool:
            return bool(answer["funnels"]) and "10 of 10 turns cannot be trained" in sentences(answer)

        answer = world.until(is_told, "the funnel does not say so", from_log=False)
        status_text = " ".join(world.rollbus("status", check=False).stdout.split())
    words = sentences(answer)
    assert f"the server that answers as gpt-4o at {url} gave no" in words
    assert "recorded by shop-agent" in words
    assert "run main cannot train" in words
    for text in (words, status_text):
        assert "nothing can train: 10 of 10 episodes" in text
        assert "serve the model with an endpoint that returns token ids" in text
