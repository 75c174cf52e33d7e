"""With a `clickhouse` binary on PATH, `up` starts it with the endpoint's port and users. The binary is a stand-in."""

import sys
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import pytest

from rollbus.local.clickhouse.reader_role import READONLY_LIMITS, READONLY_SETTINGS
from rollbus.local.clickhouse.server import prepare
from rollbus.local.process.ports import find_free_port
from rollbus.local.stack import down, stack_services, status, up
from rollbus.stack_settings import StackSettings
from tests.services.endpoint.guarded_endpoint import write_passwords

STAND_IN = """#!{python}
import http.server, sys, xml.etree.ElementTree as ET
assert sys.argv[1] == "server", sys.argv
config = ET.parse(sys.argv[2].removeprefix("--config-file=")).getroot()
ET.parse(config.findtext("users_config"))
class Ping(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"Ok.\\n")
http.server.HTTPServer((config.findtext("listen_host"), int(config.findtext("http_port"))), Ping).serve_forever()
"""


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StackSettings]:
    """A stack's settings, with the stand-in first on PATH."""
    binary = tmp_path / "bin" / "clickhouse"
    binary.parent.mkdir()
    binary.write_text(STAND_IN.format(python=sys.executable))
    binary.chmod(0o755)
    monkeypatch.setenv("PATH", str(binary.parent), prepend=":")
    settings = StackSettings(data_dir=tmp_path / "data", clickhouse_port=find_free_port())
    yield settings
    down(settings)


def test_up_starts_the_binary_and_down_ends_it(settings: StackSettings) -> None:
    service = next(candidate for candidate in stack_services(settings) if candidate.name == "clickhouse")
    [started_service] = up(settings, [service])
    assert (started_service.state, started_service.address) == (
        "started",
        f"http://127.0.0.1:{settings.clickhouse_port}",
    )
    assert [row.state for row in status(settings, [service])] == ["running"]
    command = Path(f"/proc/{started_service.pid}/cmdline").read_bytes().decode().split("\0")
    assert "server" in command
    assert f"--config-file={settings.clickhouse_dir.resolve()}/server/config.xml" in command
    assert [row.state for row in down(settings)] == ["stopped"]


def test_the_configuration_has_the_port_the_data_and_loopback_alone(tmp_path: Path) -> None:
    folder = tmp_path / "a & b"
    command = prepare("/opt/clickhouse", folder, port=8124, secrets=None)
    assert command == ["/opt/clickhouse", "server", f"--config-file={folder}/config.xml"]
    config = ET.parse(folder / "config.xml").getroot()
    assert (config.findtext("http_port"), config.findtext("listen_host")) == ("8124", "127.0.0.1")
    assert config.findtext("path") == f"{folder}/data/"
    assert config.find("tcp_port") is None
    assert config.findtext("users_config") == f"{folder}/users.xml"


def test_the_users_have_the_endpoints_passwords_and_limits(tmp_path: Path) -> None:
    secrets = write_passwords(tmp_path / "secrets", "owner's", "reader's <secret>")
    prepare("clickhouse", tmp_path, port=1, secrets=secrets)
    users = ET.parse(tmp_path / "users.xml").getroot()
    assert users.findtext("users/default/password_sha256_hex") == sha256(b"owner's").hexdigest()
    assert users.findtext("users/readonly/password_sha256_hex") == sha256(b"reader's <secret>").hexdigest()
    assert "secret" not in (tmp_path / "users.xml").read_text()
    assert users.findtext("users/readonly/profile") == "rollbus_readonly"
    profile = users.find("profiles/rollbus_readonly")
    assert profile is not None
    limits = {limit.tag: limit.text for limit in profile if limit.tag != "constraints"}
    assert limits == {**READONLY_LIMITS, "readonly": "1", "max_concurrent_queries_for_user": "4"}
    assert profile.findtext("constraints/max_execution_time/max") == "30"
    assert {constraint.tag for constraint in profile.iterfind("constraints/*[changeable_in_readonly]")} == {
        *READONLY_LIMITS,
        *READONLY_SETTINGS,
    }
    assert [ip.text for ip in users.iterfind("users/*/networks/ip")] == ["127.0.0.1"] * 2
