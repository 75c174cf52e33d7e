"""up, status and down over small services of the test's own: what is started, found again, refused, ended."""

import http.server
import os
import shutil
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from rollbus.local.process import state
from rollbus.local.process.ports import find_free_port
from rollbus.local.process.processes import ProcessorWait, end, is_running, session_members, spawn
from rollbus.local.process.service import Service, answers_http
from rollbus.local.stack import down, log_path, require_startable, status, up
from rollbus.schemas.errors import ConfigurationError, UnavailableError
from rollbus.stack_settings import HOST, StackSettings
from tests.waiting import wait_until


def web_service(name: str, port: int, *, setting: str = "some_port") -> Service:
    """A service that serves an empty folder."""
    return Service(
        name=name,
        command=lambda: [sys.executable, "-m", "http.server", "-b", HOST, "-d", str(Path(__file__).parent), str(port)],
        is_healthy=lambda: answers_http(port, "/"),
        address=f"http://{HOST}:{port}",
        ports={setting: port},
        start_timeout_s=240,
    )


@pytest.fixture
def settings(tmp_path: Path) -> Iterator[StackSettings]:
    settings = StackSettings(data_dir=tmp_path / "data")
    yield settings
    down(settings)


def test_down_ends_the_services_of_two_ups(settings: StackSettings) -> None:
    services = (web_service("a", find_free_port()), web_service("b", find_free_port()))
    assert [s.state for s in status(settings, services)] == ["stopped", "stopped"]
    heard: list[str] = []
    first = up(settings, services, report=lambda s: heard.append(s.name))
    assert [s.state for s in first] == ["started", "started"]
    assert heard == ["a", "b"]
    second = up(settings, services)
    assert [(s.state, s.pid) for s in second] == [("running", s.pid) for s in first]
    assert [s.state for s in status(settings, services)] == ["running", "running"]
    assert [s.name for s in down(settings)] == ["b", "a"]
    assert [s.state for s in status(settings, services)] == ["stopped", "stopped"]
    assert down(settings) == ()


def test_a_stale_record_with_a_reused_pid_ends_no_other_program(settings: StackSettings, tmp_path: Path) -> None:
    services = (web_service("a", find_free_port()),)
    stranger = spawn([sys.executable, "-c", "import time; time.sleep(60)"], log_path=tmp_path / "stranger.log")
    try:
        settings.run_dir.mkdir(parents=True)
        reused = replace(stranger, start_ticks=stranger.start_ticks - 100)
        state.write(settings.run_dir, state.StartedService("a", reused, "", 0))
        (seen,) = status(settings, services)
        assert (seen.state, str(stranger.pid) in seen.detail) == ("crashed", True)
        (started_service,) = up(settings, services)
        assert started_service.state == "started"
        assert started_service.pid != stranger.pid
        state.write(settings.run_dir, state.StartedService("old", reused, "", 0))
        assert {s.name: s.detail for s in down(settings)}["old"].endswith("had already ended")
        assert is_running(stranger)
    finally:
        end(stranger)


def test_a_port_in_use_is_refused_before_anything_is_started(settings: StackSettings) -> None:
    with http.server.ThreadingHTTPServer((HOST, 0), http.server.BaseHTTPRequestHandler) as server:
        services = (web_service("a", find_free_port()), web_service("b", server.server_port, setting="b_port"))
        with pytest.raises(ConfigurationError, match="for b is already in use"):
            require_startable(settings, services)
        with pytest.raises(ConfigurationError) as refusal:
            up(settings, services)
        assert f"port {server.server_port} for b is already in use by process {os.getpid()}" in str(refusal.value)
        assert "`stack: b_port:`" in str(refusal.value)
        assert [s.state for s in status(settings, services)] == ["stopped", "port in use"]
        assert down(settings) == ()
        assert not settings.secrets_dir.exists()


def test_a_port_that_another_stack_uses_is_named_with_that_stacks_folder(
    settings: StackSettings, tmp_path: Path
) -> None:
    other, service = StackSettings(data_dir=tmp_path / "other"), web_service("a", find_free_port())
    up(other, (service,))
    try:
        with pytest.raises(ConfigurationError) as refusal:
            require_startable(settings, (service,))
        assert f"of the local stack in {other.data_dir}; end that stack by `rollbus down`" in str(refusal.value)
        (row_of_service,) = status(settings, (service,))
        assert f"of the local stack in {other.data_dir}, which `up` did not start here" in row_of_service.detail
    finally:
        down(other)


def test_a_service_that_dies_while_starting_shows_the_end_of_its_log(settings: StackSettings) -> None:
    service = Service(
        name="broken",
        command=lambda: [sys.executable, "-c", "import sys; sys.exit('the data folder is spoilt')"],
        is_healthy=lambda: False,
    )
    with pytest.raises(UnavailableError, match=r"(?s)broken ended while starting.*the data folder is spoilt"):
        up(settings, (service,))
    assert status(settings, (service,))[0].state == "stopped"


def test_a_service_that_never_answers_is_given_up_and_ended(settings: StackSettings) -> None:
    pids_asked: list[int] = []

    def never() -> bool:
        pids_asked.append(_pid_of(settings, "mute"))
        return False

    command = [sys.executable, "-c", "import time; time.sleep(60)"]
    service = Service(name="mute", command=lambda: command, is_healthy=never, start_timeout_s=0.2)
    with pytest.raises(UnavailableError, match="mute did not become healthy"):
        up(settings, (service,))
    assert not session_members(pids_asked[0])
    assert down(settings) == ()


def test_a_service_that_gets_no_processor_is_given_more_time(
    settings: StackSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = iter([False] * 8)
    monkeypatch.setattr(ProcessorWait, "measure_s", lambda wait: time.monotonic())  # others had the processors
    command = [sys.executable, "-c", "import time; time.sleep(60)"]
    service = Service(
        name="slow", command=lambda: command, is_healthy=lambda: next(answers, True), start_timeout_s=0.01
    )
    (started_service,) = up(settings, (service,))
    assert started_service.state == "started"


def test_the_time_in_which_a_process_gets_no_processor_is_counted(tmp_path: Path) -> None:
    spinning = "while True: pass"
    workers = [
        spawn([sys.executable, "-c", spinning], log_path=tmp_path / "log")
        for _ in range(len(os.sched_getaffinity(0)) + 1)
    ]
    try:
        waits = [ProcessorWait(worker.pid) for worker in workers]
        wait_until(lambda: any(wait.measure_s() > 0 for wait in waits), "no process waited for a processor")
    finally:
        for worker in workers:
            end(worker)


def test_a_young_service_without_an_answer_is_starting(settings: StackSettings) -> None:
    command = [sys.executable, "-c", "import time; time.sleep(60)"]
    is_healthy = False
    service = Service(name="slow", command=lambda: command, is_healthy=lambda: is_healthy)
    is_healthy = True
    up(settings, (service,))
    is_healthy = False
    assert [row.state for row in status(settings, (service,))] == ["starting"]
    assert [row.state for row in status(settings, (replace(service, start_timeout_s=0.0),))] == ["unhealthy"]


def test_a_service_that_was_started_by_hand_counts_as_running_and_stays(settings: StackSettings) -> None:
    with http.server.ThreadingHTTPServer((HOST, 0), http.server.BaseHTTPRequestHandler) as server:
        service = replace(web_service("a", server.server_port), is_ours=lambda: True)
        require_startable(settings, (service,))
        (row,) = up(settings, (service,))
        assert (row.state, row.pid) == ("running", os.getpid())
        assert [service_status.state for service_status in status(settings, (service,))] == ["running"]
        assert down(settings) == ()


def test_a_stack_of_another_folder_whose_secrets_are_named_counts_as_running(
    settings: StackSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other, service = StackSettings(data_dir=tmp_path / "other"), web_service("a", find_free_port())
    (started_service,) = up(other, (service,))
    try:
        assert [row.state for row in status(settings, (service,))] == ["port in use"]
        monkeypatch.setenv("ROLLBUS_SECRETS", str(tmp_path / "other" / "secrets"))
        (row,) = status(settings, (service,))
        assert (row.state, row.pid, row.detail) == (
            "running",
            started_service.pid,
            f"of the local stack in {other.data_dir}",
        )
        require_startable(settings, (service,))
        assert down(settings) == ()
    finally:
        down(other)


def _pid_of(settings: StackSettings, name: str) -> int:
    service = state.read(settings.run_dir, name)
    assert service is not None
    return service.identity.pid


def test_down_ends_the_services_of_an_interrupted_up(settings: StackSettings) -> None:
    class CutOffError(BaseException):
        """Stands for the end of the process while it waits."""

    def cut_off() -> bool:
        raise CutOffError

    service = replace(web_service("a", find_free_port()), is_healthy=cut_off)
    with pytest.raises(CutOffError):
        up(settings, (service,))
    pid = _pid_of(settings, "a")
    assert session_members(pid) == (pid,)
    assert [s.name for s in down(settings)] == ["a"]
    assert session_members(pid) == ()


def test_a_full_disk_is_refused_up_front(settings: StackSettings) -> None:
    with pytest.raises(ConfigurationError, match=r"only 0\.50 GiB free.*needs 1 GiB"):
        up(settings, (web_service("a", find_free_port()),), free_bytes=lambda path: 1 << 29)
    assert not log_path(settings, "a").exists()


def test_a_disk_of_no_known_size_is_not_called_full(settings: StackSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(0, 0, 0))
    require_startable(settings, (web_service("a", find_free_port()),))


def test_a_data_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigurationError, match=r"cannot be written: Not a directory.*`data_dir`"):
        up(StackSettings(data_dir=tmp_path / "file" / "data"), ())


def test_two_commands_on_one_stack_at_once_are_refused(settings: StackSettings) -> None:
    settings.run_dir.mkdir(parents=True)
    refused: list[str] = []

    def second() -> None:
        with pytest.raises(ConfigurationError) as refusal:
            up(settings, ())
        refused.append(str(refusal.value))
        with pytest.raises(ConfigurationError) as refusal:
            down(settings)
        refused.append(str(refusal.value))

    with state.hold_run_dir(settings.run_dir):
        thread = threading.Thread(target=second)
        thread.start()
        thread.join()
    assert len(refused) == 2
    assert all(f"being started or stopped by {os.getpid()} (" in message for message in refused)


def test_an_invalid_record_of_a_service_is_named(settings: StackSettings) -> None:
    settings.run_dir.mkdir(parents=True)
    (settings.run_dir / "a.json").write_text('{"name": "a"}')
    with pytest.raises(ConfigurationError, match=r"a\.json is not a record"):
        down(settings)
    (settings.run_dir / "a.json").unlink()
