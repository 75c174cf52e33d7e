"""`rollbus proxy run`: what its options set."""

import socket
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, get_args

import click
import pytest
import uvicorn
from click.testing import CliRunner

from rollbus.cli.commands.producers.proxy import find_spooled, run
from rollbus.cli.root import rollbus
from rollbus.producers import Recorder
from rollbus.producers.proxy.app import Proxy
from rollbus.producers.sending import kafka_sink
from rollbus.producers.sending.kafka_sink import KafkaSink
from rollbus.producers.turns.redaction import Field
from rollbus.runtime.principals import issue
from rollbus.schemas.errors import UnavailableError


@pytest.fixture
def served_apps(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """The applications that would be served."""
    monkeypatch.setenv("ROLLBUS_SECRETS", str(tmp_path_factory.mktemp("secrets")))
    monkeypatch.setenv("ROLLBUS_KAFKA__BOOTSTRAP_SERVERS", "127.0.0.1:1")  # no broker takes what is recorded
    apps: list[Any] = []

    async def serve(server: uvicorn.Server, sockets: object) -> None:
        config: Any = server.config
        apps.append(config.app.app)

    monkeypatch.setattr(uvicorn.Server, "serve", serve)
    return apps


def invoke(*arguments: str, expect: int = 0) -> str:
    result = CliRunner().invoke(
        rollbus, ["proxy", "run", "--upstream", "http://127.0.0.1:1/v1", "--port", "0", *arguments]
    )
    assert result.exit_code == expect, result.output
    return result.output


def test_every_field_that_can_be_withheld_is_offered() -> None:
    (option,) = [param for param in run.params if param.name == "withhold"]
    assert isinstance(option.type, click.Choice)
    assert tuple(option.type.choices) == get_args(Field)


def test_the_proxy_has_options_for_withholding_sampling_and_its_spool(served_apps: list[Any], tmp_path: Path) -> None:
    invoke("--withhold", "messages", "--withhold", "tools", "--sample-rate", "0.5", "--spool-folder", str(tmp_path))
    recorder: Recorder = served_apps[0].app.routes[0].endpoint.__self__.recorder
    assert recorder.settings.withhold == {"messages", "tools"}
    assert recorder.settings.sample_rate == 0.5
    recorder.feedback(alias="order-1", reward=1.0)
    recorder.close(120)
    assert [place.name for place in tmp_path.iterdir()] == ["proxy"]
    assert list((tmp_path / "proxy").iterdir()) != []


def test_the_proxy_says_where_it_listens(served_apps: list[Any]) -> None:
    output = invoke()
    proxy: Proxy = served_apps[0].app.routes[0].endpoint.__self__
    assert f"what asks OPENAI_BASE_URL={proxy.address}/v1 is recorded" in output
    assert not proxy.address.endswith(":0")


def test_spooled_events_keep_their_principal(
    served_apps: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = issue(tmp_path / "secrets", "agent-7", ("record", "feedback"), datetime.now(UTC))
    monkeypatch.setenv("ROLLBUS_SECRETS", str(tmp_path / "secrets"))
    spool = tmp_path / "spool"
    invoke("--spool-folder", str(spool))
    proxy: Proxy = served_apps[0].app.routes[0].endpoint.__self__
    recorder = proxy.desk_of({"authorization": f"Bearer {token}"}).recorder
    recorder.feedback(alias="order-1", reward=1.0)
    recorder.close(120)
    proxy.recorder.close(120)
    assert find_spooled(spool) == ["agent-7"]
    heads: list[str] = []

    class Sink(KafkaSink):
        async def start(self) -> None:
            raise UnavailableError("no broker")

        def __init__(self, *places: Any, **options: Any) -> None:
            super().__init__(*places, **options)
            heads.append(str(options["token"]).rpartition(".")[0])

    monkeypatch.setattr(kafka_sink, "KafkaSink", Sink)
    invoke("--spool-folder", str(spool))
    assert set(heads) >= {"rb.agent-7.fr.0"}


def test_a_port_that_is_taken_is_named_with_the_option(served_apps: list[Any]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken_socket:
        port = str(taken_socket.getsockname()[1])
        assert f"port {port} of 127.0.0.1 is taken" in invoke("--port", port, expect=1)
    assert served_apps == []


def test_a_wrong_option_is_refused_before_anything_is_served(served_apps: list[Any]) -> None:
    assert "Invalid value for '--sample-rate'" in invoke("--sample-rate", "2", expect=2)
    assert "secrets" in invoke("--withhold", "secrets", expect=2)
    assert served_apps == []


@pytest.mark.parametrize("upstream", ["localhost:8000/v1", "127.0.0.1:8000", "ftp://m/v1", "http://", "http://m:x/v1"])
def test_an_unreachable_upstream_is_refused(served_apps: list[Any], upstream: str) -> None:
    assert "like http://127.0.0.1:8000/v1" in invoke("--upstream", upstream, expect=2)
    assert not served_apps
