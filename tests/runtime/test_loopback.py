"""With a proxy in the environment, and no exceptions, this machine's addresses are asked directly."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from rollbus.consumers.loggers.webhook import Webhook
from rollbus.demo.traffic import local_client
from rollbus.estimates.scoring import EndpointScorer
from rollbus.local.process.ports import find_free_port
from rollbus.runtime.http.loopback import ask_loopback_directly
from tests.console import ROLLBUS
from tests.web import QuietHandler, serve

NAMES = "127.0.0.1,::1,localhost"


class Proxy(QuietHandler):
    """Answers everything with what the test looks for."""

    def do_GET(self) -> None:
        self.answer_text("this is the proxy", "text/plain")

    do_POST = do_GET


class Health(QuietHandler):
    def do_GET(self) -> None:
        self.answer({})

    def do_POST(self) -> None:
        self.read_body()
        self.answer({})


@pytest.fixture
def proxy(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A proxy that the environment names, with no exception."""
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with serve(Proxy) as url:
        monkeypatch.setenv("http_proxy", url)
        yield url


def test_the_commands_ask_clickhouse_on_this_machine_directly(proxy: str, tmp_path: Path) -> None:
    port = find_free_port()
    (tmp_path / "rollbus.yaml").write_text(f"clickhouse: {{host: 127.0.0.1, port: {port}}}\n")
    completed = subprocess.run(
        [ROLLBUS, "sql", "query", "SELECT 1"], cwd=tmp_path, env=dict(os.environ), capture_output=True, text=True
    )
    assert completed.returncode == 1
    assert "the proxy" not in completed.stderr
    assert "it cannot be reached" in completed.stderr, completed.stderr


def test_a_proxy_of_a_kind_that_is_not_installed_does_not_matter_on_this_machine(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """httpx refuses to make a client where the environment names a SOCKS proxy, whatever address the client is for."""
    monkeypatch.setenv("all_proxy", "socks5://127.0.0.1:9")
    with serve(Health) as url:
        hook = Webhook(url)
        hook.post({"text": "hello"})
        hook.close()
    local_client(url, "key")
    EndpointScorer(url)
    with pytest.raises(ImportError, match="SOCKS"):
        Webhook("http://elsewhere.example")


@pytest.mark.parametrize("url", ["http://127.0.0.1:{}", "http://localhost:{}"])
def test_clients_of_other_libraries_ask_this_machine_directly(url: str, proxy: str) -> None:
    assert httpx.get(url.format(find_free_port())).text == "this is the proxy"
    ask_loopback_directly(os.environ)
    with pytest.raises(httpx.ConnectError):
        httpx.get(url.format(find_free_port()))
    assert httpx.get("http://elsewhere.example").text == "this is the proxy"


@pytest.mark.parametrize(
    ("environ", "exceptions"),
    [
        ({}, None),
        ({"no_proxy": "inner.example"}, "inner.example"),
        ({"HTTPS_PROXY": "http://a"}, NAMES),
        ({"all_proxy": "http://a", "NO_PROXY": "inner.example, localhost"}, "inner.example,localhost,127.0.0.1,::1"),
        ({"http_proxy": "http://a", "no_proxy": "*"}, "*"),
    ],
)
def test_exceptions_that_somebody_set_stay(environ: dict[str, str], exceptions: str | None) -> None:
    ask_loopback_directly(environ)
    assert environ.get("no_proxy") == exceptions
