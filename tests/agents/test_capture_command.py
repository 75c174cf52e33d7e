"""`rollbus run python app.py`: a program that knows nothing of rollbus, from a folder of its own."""

import os
import signal
import subprocess
import sys
import textwrap
import venv
from collections.abc import Iterator
from pathlib import Path

import pytest

from rollbus.cli.commands.producers.capture import time_left
from rollbus.producers.startup.plan import ProcessReport, read_ended, write_ended
from rollbus.schemas.records.events import EpisodeEnded, EpisodeStarted, Event, TurnRecorded, WriterClosed
from tests.agents.compare import compare_turns
from tests.agents.model_server import Faults, ModelServer
from tests.console import ROLLBUS
from tests.producers.recorded_events import read_spool
from tests.waiting import wait_until

pytestmark = pytest.mark.slow

APP = """
    import multiprocessing, os, subprocess, sys
    from concurrent.futures import ThreadPoolExecutor

    url, *rest = sys.argv[1:]
    if not rest:  # a process of its own, as of a tool
        subprocess.run([sys.executable, __file__, url, "of a child"], check=True)
    import openai

    def ask(text):
        messages = [{"role": "user", "content": text + " <e1>"}]
        with openai.OpenAI(api_key="k", base_url=url, max_retries=0) as client:
            client.chat.completions.create(model="agent", messages=messages)

    for text in rest or ["first"]:
        ask(text)
    if not rest:
        with ThreadPoolExecutor(2) as executor:
            list(executor.map(ask, ["left", "right"]))
        worker = multiprocessing.get_context("fork").Process(target=ask, args=("of a worker",))
        worker.start()
        worker.join()
        if not (child := os.fork()):
            ask("of a fork")
            sys.exit()
        os.waitpid(child, 0)
        print("done", file=sys.stderr)
        sys.exit(3)
"""


@pytest.fixture
def server() -> Iterator[ModelServer]:
    """A server without faults."""
    server = ModelServer(Faults())
    yield server
    server.close()


def write(program: str, folder: Path) -> tuple[str, ...]:
    """Write the program, and return the words that start it from its folder."""
    (folder / "app.py").write_text(textwrap.dedent(program))
    return (sys.executable, "-W", "ignore", "app.py")


def start(*words: str, cwd: Path) -> "subprocess.Popen[str]":
    """Start the installed command, with a broker that is away and a spool."""
    environment = {**os.environ, "ROLLBUS_KAFKA__BOOTSTRAP_SERVERS": "127.0.0.1:9"}
    command = [ROLLBUS, *words[:1], "--spool-folder", "spool", *words[1:]]
    return subprocess.Popen(command, cwd=cwd, env=environment, stderr=subprocess.PIPE, text=True)


def run(*words: str, cwd: Path, code: int) -> tuple[str, list[Event]]:
    """Run the command to its end; return what it said and what it recorded."""
    process = start(*words, cwd=cwd)
    output = process.communicate(timeout=500)[1]
    assert process.returncode == code, output
    return output, read_spool(cwd / "spool")


def test_a_program_with_its_threads_and_processes_is_one_episode(server: ModelServer, tmp_path: Path) -> None:
    output, events = run("run", *write(APP, tmp_path), server.url, cwd=tmp_path, code=3)
    (start,) = (event for event in events if isinstance(event, EpisodeStarted))
    for answer in server.answers:
        answer.episode = start.episode_id
    assert len(turns := compare_turns(server, events)) == 6
    (ended,) = (event for event in events if isinstance(event, EpisodeEnded))
    assert (start.task, start.producer) == ("app", "app")
    assert (ended.stop_reason, ended.error) == ("error", "exit code 3")
    assert {turn.writer_id for turn in turns} <= set(ended.writer_ids)
    assert output.splitlines()[-2:] == ["done", "rollbus: recorded 6 turns of 4 processes, 6 of them trainable"]


def test_each_call_can_be_an_episode(server: ModelServer, tmp_path: Path) -> None:
    program = (*write(APP, tmp_path), server.url, "one", "two")
    _, events = run("capture", "--per", "run", "--task", "shop", *program, cwd=tmp_path, code=0)
    turns = {event.episode_id for event in events if isinstance(event, TurnRecorded)}
    assert [event.task for event in events if isinstance(event, EpisodeStarted)] == ["shop"] * len(turns)
    assert len(turns) == 2
    assert {event.episode_id for event in events if isinstance(event, EpisodeEnded)} == turns


def test_the_command_counts_the_turns_of_a_program_ended_by_sigterm(server: ModelServer, tmp_path: Path) -> None:
    program = f"""
        import pathlib, time
        import openai
        with openai.OpenAI(api_key="k", base_url={server.url!r}, max_retries=0) as client:
            for _ in range(3):
                client.chat.completions.create(model="agent", messages=[{{"role": "user", "content": "<e1>"}}])
        pathlib.Path("asked").touch()
        time.sleep(600)
    """
    process = start("run", *write(program, tmp_path), cwd=tmp_path)
    wait_until((tmp_path / "asked").exists, "the program has not asked")
    process.send_signal(signal.SIGTERM)
    output = process.communicate(timeout=500)[1]
    (ended,) = (event for event in read_spool(tmp_path / "spool") if isinstance(event, EpisodeEnded))
    assert (process.returncode, ended.error) == (128 + signal.SIGTERM, "ended by SIGTERM"), output
    assert output.splitlines()[-1].startswith(
        "rollbus: recorded 3 turns of 1 process, 3 of them trainable; 1 process did"
    )


def test_a_process_that_is_killed_is_named_and_its_writer_is_missing(server: ModelServer, tmp_path: Path) -> None:
    program = f"""
        import os, signal, subprocess, sys, time
        import openai
        if sys.argv[1:]:
            with openai.OpenAI(api_key="k", base_url={server.url!r}, max_retries=0) as client:
                client.chat.completions.create(model="agent", messages=[{{"role": "user", "content": "<e1>"}}])
            while not [name for name in os.listdir(os.environ["ROLLBUS_CAPTURE"]) if name.startswith("ended")]:
                time.sleep(0.01)
            os.kill(os.getpid(), signal.SIGKILL)
        subprocess.run([sys.executable, "-W", "ignore", __file__, "again"])
    """
    output, events = run("run", *write(program, tmp_path), cwd=tmp_path, code=0)
    assert output.splitlines()[-1].endswith(
        "; 1 process did not come to an end: what was neither sent nor spooled is lost"
    )
    (ended,) = (event for event in events if isinstance(event, EpisodeEnded))
    assert len(set(ended.writer_ids) - {event.writer_id for event in events if isinstance(event, WriterClosed)}) == 1


def test_a_killed_process_leaves_a_whole_report_or_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class KilledError(BaseException):
        pass

    def end_by_kill(*_: object, **__: object) -> None:
        raise KilledError

    with monkeypatch.context() as writing:
        writing.setattr(Path, "replace", end_by_kill)
        with pytest.raises(KilledError):
            write_ended(tmp_path, ProcessReport(whole=False))
    assert list(read_ended(tmp_path)) == []
    write_ended(tmp_path, ProcessReport(whole=False))
    with monkeypatch.context() as writing:
        writing.setattr(Path, "replace", end_by_kill)
        with pytest.raises(KilledError):
            write_ended(tmp_path, ProcessReport())
    assert list(read_ended(tmp_path)) == [ProcessReport(whole=False)]


OWN_RECORDER_PROGRAM = """
    import sys
    import openai, rollbus
    from rollbus.producers.sending.sink import MemorySink

    url, how = sys.argv[1:]
    recorder = rollbus.init(sink=MemorySink(), producer="own")
    client = openai.OpenAI(api_key="k", base_url=url, max_retries=0)
    if how == "wrap":
        client = recorder.wrap(client)
    else:
        rollbus.instrument(recorder)

    def ask(text, **options):
        messages = [{"role": "user", "content": text + " <e1>"}]
        list(client.chat.completions.create(model="agent", messages=messages, **options))

    with recorder.episode(task="own"):
        ask("in its own episode")
        ask("streamed", stream=True)
    ask("in none")
    recorder.flush()
    print("own", recorder.counters["turns_trainable"], file=sys.stderr)
"""


@pytest.mark.parametrize(
    ("how", "ours", "says"),
    [
        ("wrap", 1, "recorded 1 turn of 1 process, 1 of them trainable; the program's own recorder recorded 2 calls"),
        ("instrument", 0, "recorded 0 turns of 1 process, 0 of them trainable; the program records by itself"),
    ],
)
def test_a_call_that_the_programs_own_recorder_records_is_recorded_once(
    how: str, ours: int, says: str, server: ModelServer, tmp_path: Path
) -> None:
    output, events = run("run", *write(OWN_RECORDER_PROGRAM, tmp_path), server.url, how, cwd=tmp_path, code=0)
    assert len(server.answers) == 3
    assert "own 2" in output
    assert sum(isinstance(event, TurnRecorded) for event in events) == ours
    assert output.splitlines()[-1].startswith(f"rollbus: {says}")


def test_unsent_events_of_program_and_command_are_counted(server: ModelServer, tmp_path: Path) -> None:
    environment = {**os.environ, "ROLLBUS_KAFKA__BOOTSTRAP_SERVERS": "127.0.0.1:9"}
    command = [ROLLBUS, "run", *write(APP, tmp_path), server.url, "one"]
    completed = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
    lost = [int(line.split()[1]) for line in completed.stderr.splitlines() if line.endswith("and are lost")]
    assert len(lost) == 2
    assert completed.stderr.splitlines()[-1].endswith(f"1 of them trainable; lost: {sum(lost)} events")


def test_program_and_command_share_one_wait_for_an_absent_broker() -> None:
    reports = [ProcessReport(waited_s=1.0), ProcessReport(waited_s=4.0)]
    assert time_left(reports, 5.0, is_healthy=False) == 1.0
    assert time_left([], 5.0, is_healthy=None) == 5.0
    assert time_left([ProcessReport(waited_s=5.5)], 5.0, is_healthy=None) == 0.0
    assert time_left(reports, 5.0, is_healthy=True) == 5.0


def test_a_program_without_rollbus_runs_and_gets_one_line(tmp_path: Path) -> None:
    output, _ = run("run", "sh", "-c", "exit 0", cwd=tmp_path, code=0)
    assert "nothing was recorded: no Python process has reported" in output


def test_a_program_that_cannot_be_started_leaves_no_open_episode(tmp_path: Path) -> None:
    (tmp_path / "app").write_text("exit 0")  # without a line that says which program reads it
    (tmp_path / "app").chmod(0o755)
    output, events = run("run", "./app", cwd=tmp_path, code=2)
    assert "'./app' cannot be started: Exec format error" in output
    (ended,) = (event for event in events if isinstance(event, EpisodeEnded))
    assert (ended.stop_reason, ended.error) == ("error", "'./app' cannot be started: Exec format error")


def test_a_program_that_a_signal_without_a_name_ends_has_an_end(tmp_path: Path) -> None:
    _, events = run("run", "sh", "-c", "kill -40 $$", cwd=tmp_path, code=128 + 40)
    (ended,) = (event for event in events if isinstance(event, EpisodeEnded))
    assert (ended.stop_reason, ended.error) == ("error", "ended by signal 40")


@pytest.mark.parametrize("program", ["raise RuntimeError('of theirs')", "import a_package_of_theirs"])
def test_a_program_whose_own_sitecustomize_fails_is_recorded(
    program: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "sitecustomize.py").write_text(program)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "theirs"))
    output, _ = run("run", sys.executable, "-c", "pass", cwd=tmp_path, code=0)
    assert output.count("Error in sitecustomize") == 2, "of the command, and of the program"
    assert "rollbus: recorded 0 turns of 1 process" in output


def test_a_python_without_rollbus_is_named_with_the_install_command(tmp_path: Path) -> None:
    venv.create(tmp_path / "theirs", symlinks=True)
    python = tmp_path / "theirs" / "bin" / "python"
    output, _ = run("run", str(python), "-c", "pass", cwd=tmp_path, code=0)
    assert f"{python}, which runs the program, has no package rollbus; run: {python} -m pip install rollbus" in output


def test_an_unknown_verb_is_named_with_the_nearest_one(tmp_path: Path) -> None:
    completed = subprocess.run([ROLLBUS, "run", "lst"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert completed.returncode == 2
    assert "No such command 'lst'. Did you mean 'list'? It is not a program either." in completed.stderr
