"""What strangers write into labels, tasks, names and errors moves no terminal, forges no log line, runs no formula."""

import asyncio
import io
import json
import logging
import os
import pty
import re
import socket
import subprocess
from contextlib import redirect_stderr, redirect_stdout, suppress
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from rollbus.cli.root import Nouns
from rollbus.consumers.clickhouse.questions.chart import as_chart
from rollbus.consumers.clickhouse.questions.output import as_csv, as_json, as_table
from rollbus.runtime.http.guard import Door, token_admits
from rollbus.runtime.http.server import make_server
from rollbus.schemas.errors import ServiceError
from rollbus.schemas.unseen_characters import escape_unseen
from rollbus.stack_settings import HOST
from rollbus.terminal.log_lines import LogFormatter
from rollbus.terminal.output import Console, OutputTable, echo
from tests.console import ROLLBUS
from tests.hostile.doors import ask
from tests.services.endpoint.guarded_endpoint import Guarded, guarded

__all__ = ["guarded"]
TERMINAL = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "200"}

ATTACKS = {
    "window title": "\x1b]0;pwned\x07",
    "clipboard": "\x1b]52;c;cm0gLXJmIH4=\x1b\\",
    "clear": "\x1b[2J\x1b[H",
    "one-byte CSI": "\x9b2J",
    "one-byte OSC": "\x9d0;pwned\x9c",
    "hidden": "\x1b[8msecret\x1b[0m",
    "overwrite": "failed\rpassed",
    "backspace": "no\x08\x08yes",
    "shift out": "\x0e",
    "override": "\u202egnp.exe",
    "isolate": "\u2066a\u2069",
    "mark": "\u200f",
    "tag": "\U000e0041",
    "line separator": "a\u2028b",
    "byte order mark": "\ufeff",
    "half": "\ud83d",
}
FORBIDDEN = {character for text in ATTACKS.values() for character in text if not character.isprintable()}


def assert_tame(output: str) -> None:
    assert not FORBIDDEN & set(output), ascii(output)


@pytest.mark.parametrize("text", ATTACKS.values(), ids=ATTACKS.keys())
def test_nothing_that_commands_print_moves_the_terminal(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # a terminal
    monkeypatch.setenv("TERM", "dumb")  # without colours of rich's own
    table = OutputTable(f"name {text}", title=text)
    table.add_row(text)
    output = io.StringIO()
    console = Console(file=output, width=80)
    assert console.is_terminal
    for renderable in (text, table, as_table([text], [[text], [{text: [text]}]], title=text, width=80)):
        console.print(renderable)
    console.print(as_chart(["name", "mean"], [[text, 1.0]]))
    with redirect_stdout(output):
        echo(text)
    assert_tame(output.getvalue())
    assert escape_unseen(text).strip()[:4] in output.getvalue()


@pytest.mark.parametrize("text", ATTACKS.values(), ids=ATTACKS.keys())
def test_an_error_with_control_characters_does_not_move_the_terminal(text: str) -> None:
    @click.command(cls=Nouns)
    def command() -> None: ...

    @click.command()
    def fail() -> None:
        raise ServiceError(f"reward {text} failed")

    command.get_command = lambda ctx, cmd_name: fail  # type: ignore[method-assign]
    answer = CliRunner().invoke(command, ["fail"])
    assert answer.exit_code == 1
    assert_tame(answer.output)


def test_a_label_cannot_forge_a_line_of_the_log() -> None:
    formatter = LogFormatter("%(asctime)s %(levelname)s %(message)s")
    forged = "ann\n2026-01-01 00:00:00,000 INFO paid\x1b[2J"
    try:
        raise ValueError(forged)
    except ValueError as error:
        record = logging.LogRecord("rollbus", logging.ERROR, "", 0, "label %s", (forged,), (type(error), error, None))
    lines = formatter.format(record).split("\n")
    assert [line.startswith("    ") for line in lines if "paid" in line] == [True] * 2, "message and error"
    assert [line for line in lines[1:] if not line.startswith("    ")] == ["ValueError: ann"]
    assert lines[1] == "    2026-01-01 00:00:00,000 INFO paid\\u001b[2J"
    assert_tame(formatter.format(record))


async def test_a_failing_server_logs_foreign_text_through_its_formatter() -> None:
    async def fail(scope: Any, receive: Any, send: Any) -> None:
        raise ValueError("paid\x1b[2J\n2026-01-01 00:00:00,000 INFO paid")

    written, errors, root = io.StringIO(), io.StringIO(), logging.getLogger()
    handler = logging.StreamHandler(written)
    handler.setFormatter(LogFormatter("%(message)s"))
    with redirect_stderr(errors):
        server = make_server(fail, Door(token_admits(None), 0), lifespan="off", timeout_graceful_shutdown=1)
        root.addHandler(handler)
        listener = socket.create_server((HOST, 0))
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        try:
            port = listener.getsockname()[1]
            status, _ = await ask(port, f"GET / HTTP/1.1\r\nhost: {HOST}\r\nconnection: close\r\n\r\n".encode())
        finally:
            root.removeHandler(handler)
            server.should_exit = True
            await serving
    assert (status, errors.getvalue()) == (500, "")
    assert "    2026-01-01 00:00:00,000 INFO paid" in written.getvalue().splitlines()
    assert_tame(written.getvalue())


@pytest.mark.parametrize(
    "text", ["=cmd|' /C calc'!A0", "+1+2", "-1+2", "@SUM(A1)", "\t=1", "\r=1", "\uff1d1", "\uff0b1"]
)
def test_no_csv_field_is_a_formula(text: str) -> None:
    head, row = as_csv([text], [[text]]).split("\n", 1)
    assert row.lstrip('"')[0] == head.lstrip('"')[0] == "'"
    assert as_csv(["a"], [[-1.5], [-3]]) == "a\n-1.5\n-3\n"


def test_json_holds_the_same_values_without_control_characters() -> None:
    rows: list[list[Any]] = [[text] for text in ATTACKS.values() if text != ATTACKS["half"]]
    output = as_json(["text"], rows)
    assert_tame(output.replace("\n", ""))
    assert [[json.loads(line)["text"]] for line in output.splitlines()] == rows


def test_the_writing_of_people_stays_readable() -> None:
    for text in ("Zoë said “no”", "می‌خواهم", "👨‍👩‍👧", "東京\u3000駅", "two\nlines\tand a tab"):
        assert escape_unseen(text) == text


@pytest.mark.services
@pytest.mark.parametrize("output", ["table", "csv", "json", "chart"])
def test_a_label_in_clickhouse_moves_no_real_terminal(guarded: Guarded, tmp_path: Path, output: str) -> None:
    path = tmp_path / "rollbus.yaml"
    path.write_text(
        json.dumps({"clickhouse": {"port": guarded.port, "password": guarded.password, "database": "default"}})
    )
    text = "".join(ATTACKS[name] for name in ATTACKS if name != "half").encode().hex()
    own_end, command_end = pty.openpty()
    statement = f"SELECT unhex('{text}') AS label, 1 AS mean"
    command = [ROLLBUS, "--config", str(path), "sql", "query", "-o", output, statement]
    with subprocess.Popen(command, cwd=tmp_path, stdout=command_end, stderr=command_end, env=TERMINAL) as process:
        os.close(command_end)
        screen_bytes = b""
        with suppress(OSError):  # the end of a terminal
            while piece := os.read(own_end, 65_536):
                screen_bytes += piece
    os.close(own_end)
    assert process.returncode == 0
    of_rich = re.sub(r"\x1b\[[0-9;]*m|\r\n|\x1b\[\?25[hl]", "", screen_bytes.decode())
    assert "\\u001b" in of_rich
    assert "\x1b[8m" not in screen_bytes.decode()
    assert_tame(of_rich)
