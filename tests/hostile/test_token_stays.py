"""The stack's token goes to the stack's own servers, and to nothing else that a program is pointed at."""

import subprocess
import sys
from pathlib import Path

import pytest

import rollbus
from rollbus.local.process.ports import find_free_port
from rollbus.local.stack import require_startable, stack_services
from rollbus.runtime.credentials import NO_TOKEN, make_secrets, record_ports, token_for
from rollbus.settings import Settings
from rollbus.settings_file import load_settings
from rollbus.stack_settings import StackSettings

ELSEWHERE = (
    "http://evil.example/v1",
    "http://127.0.0.1.evil.example:8000/v1",
    "http://127.0.0.1@evil.example:8000/v1",
    "http://evil.example:8000/?http://127.0.0.1:8000/",
    "http://127.0.0.1:9999/v1",  # another program, maybe another user's
    "http://127.0.0.1/v1",
    "https://127.0.0.1/v1",
    "http://10.0.0.5:8000/v1",
    "http://[::1/v1",
    "http://127.0.0.1:port/v1",
    "http://127.0.0.1:99999/v1",
    "",
)


@pytest.fixture
def secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a stack's secrets, with a token, as a program in the stack's folder finds it."""
    monkeypatch.chdir(tmp_path)
    for name in ("ROLLBUS_SECRETS", "ROLLBUS_ART_SERVER__TOKEN"):
        monkeypatch.delenv(name, raising=False)
    folder = tmp_path / ".rollbus" / "secrets"
    make_secrets(folder)
    return folder


def test_a_program_elsewhere_never_gets_the_token(secrets: Path) -> None:
    token = (secrets / "token").read_text().strip()
    for url in ("http://127.0.0.1:8000/v1", "http://localhost:7623", "http://[::1]:8001/v1"):
        assert rollbus.read_token(url) == token
    for url in ELSEWHERE:
        assert rollbus.read_token(url) == NO_TOKEN, url
        assert token_for(url) is None, url


def test_a_stack_on_other_ports_gives_the_token_to_these_ports_alone(secrets: Path, tmp_path: Path) -> None:
    ports = {name: find_free_port() for name in StackSettings.model_fields if name.endswith("_port")}
    stack = StackSettings.model_validate({"data_dir": tmp_path / ".rollbus", **ports})
    require_startable(stack, stack_services(stack))
    assert rollbus.read_token(stack.model_url) == rollbus.read_token(stack.art_url) != NO_TOKEN
    assert rollbus.read_token("http://127.0.0.1:8000/v1") == NO_TOKEN
    Settings(stack=stack).with_token("127.0.0.1", [9009], {})  # as `rollbus proxy run --port 9009`
    assert rollbus.read_token("http://127.0.0.1:9009/v1") != NO_TOKEN
    record_ports(secrets / "absent", 1)
    assert not (secrets / "absent").exists()


def test_a_token_that_was_given_by_hand_stays_on_this_machine_too(
    secrets: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROLLBUS_ART_SERVER__TOKEN", "given-by-hand")
    assert rollbus.read_token("http://127.0.0.1:9999/v1") == "given-by-hand"
    assert rollbus.read_token("http://evil.example:8000/v1") == NO_TOKEN


@pytest.mark.parametrize("url", ["http://evil.example:7623", "http://127.0.0.1:9999", "http://127.0.0.1:99999"])
def test_a_trainer_and_a_proxy_pointed_elsewhere_do_not_send_it(secrets: Path, tmp_path: Path, url: str) -> None:
    path = tmp_path / "rollbus.yaml"
    path.write_text(f"trainer: {{backend: {{type: art-server, url: '{url}'}}}}\n")
    settings = load_settings(Settings, path, {}).with_credentials({})
    assert settings.art_server.token is not None
    assert settings.trainer_settings().backend.token is None  # type: ignore[union-attr]
    assert settings.token_of(url) is None
    assert settings.token_of(settings.stack.art_url) == settings.art_server.token


def test_the_quickstart_agent_that_is_pointed_elsewhere_does_not_send_it(secrets: Path) -> None:
    """A stranger's server on this machine looks at what the agent brings."""
    agent = Path(__file__).parents[2] / "examples" / "quickstart" / "agent.py"
    program = f"""
import os, runpy, sys, threading, http.server
seen = []
class Stranger(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        seen.append(self.headers["authorization"])
        self.send_response(401); self.end_headers()
    def log_message(self, *rest): pass
server = http.server.HTTPServer(("127.0.0.1", 0), Stranger)
threading.Thread(target=server.serve_forever, daemon=True).start()
url = f"http://127.0.0.1:{{server.server_port}}/v1"
sys.argv = ["agent.py", "--endpoint", url, "--kafka", "127.0.0.1:1", "--tickets", "1"]
try:
    runpy.run_path({str(agent)!r}, run_name="__main__")
except Exception as error:
    assert type(error).__name__ == "AuthenticationError", error
print(set(seen), flush=True)
os._exit(0)  # without waiting for a broker
"""
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert run.stdout.strip() == "{'Bearer none'}", run.stderr
