"""What a process starts has an owner that hears of an end that nobody asked for.

Background work starts in `runtime/tasks.py`. What is started elsewhere is awaited, or its result taken, by the code
that starts it: the table names each place and how, so a new start is looked at.
"""

import ast
import asyncio
import sys
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest

from rollbus.runtime.tasks import start_task, start_thread
from tests.test_boundaries import MODULES, ROOT

STARTS = {"create_task", "ensure_future", "Thread", "Timer", "start_new_thread"}
AWAITED_CALLS = {
    "consumers/clickhouse/sink/sink.py:Sink.run": "the flush under way is awaited before the next one, and at the end",
    "producers/episode/context.py:bind.bound_async": "awaited at once",
    "producers/episode/scope.py:_call_in_thread": "awaited at once, whatever the function does",
    "producers/imports/grpc_server.py:_read_message": "a timer that cancels a call",
    "producers/proxy/episodes.py:Desk.flush": "awaited by the answers that wait for it",
    "producers/proxy/app.py:_unless_gone": "gathered before it returns",
    "producers/sending/courier.py:Courier.start": "the thread logs what ends it, and sets `ended`",
    "producers/sending/courier.py:_Resolver.__init__": "each call's error goes to its future",
    "producers/sending/sigterm.py:_begin_to_end": "it ends the process",
    "rollbus/cli/replay/load.py:load_replay": "awaited at the end",
    "rollbus/terminal/silence.py:watch_silence": "it writes lines on the way, and nothing is missing without them",
    "rollbus/demo/game/agents.py:Agents.run": "a task group",
    "rollbus/demo/routing/customers.py:Customers.run": "a task group",
    "rollbus/health/reporter.py:HealthReporter.run": "the first to end decides, and its error is raised",
    "rollbus/nemo/evaluation.py:BusEvaluation._run_workflow": "awaited at once",
    "rollbus/nemo/runs/event_loop.py:run_to_end": "its result is returned, and its error raised",
    "rollbus/nemo/runs/run.py:training": "each wait of the run checks it and raises its error",
    "rollbus/nemo/trajectory_builder.py:BusTrajectoryBuilder.start_run": "gathered when the run is finalized",
    "rollbus/resample/attempts.py:Resampler._within_time": "awaited; one that is left behind logs its error",
    "rollbus/resample/requests.py:resample": "waits for `stop` only",
    "rollbus/resample/requests.py:Requests.next": "its result is taken at once",
    "runtime/cancelling.py:all_or_none": "gathered before it returns",
    "runtime/kafka/clients.py:start_uncancelled": "gathered before it returns",
    "runtime/tasks.py:start_task": "the owner",
    "runtime/tasks.py:start_thread": "the owner",
    "streams/replay/decide/steps.py:run_unless_stopped": "gathered before it returns",
    "streams/replay/kafka/lane.py:_Frames._send": "awaited before the next one, and at the end",
    "streams/replay/kafka/lane.py:main": "it ends the process",
    "streams/replay/kafka/writer.py:KafkaOutput._send": "awaited before the next one, and at the end",
    "streams/stages/scoring/answers.py:Asker._call_once": "its result is an answer, also of an error of any class",
    "streams/stages/scoring/threads.py:CallThreads.call": "awaited at once; its error is raised here",
    "streams/worker/worker.py:Worker.wait": "waits for `stop` only",
    "trainer/art_server/control/following.py:DecisionFollower._run": "its thread runs until it ends",
    "trainer/art_server/endpoint/choices.py:Choices.answers": "its result is taken at once",
    "trainer/art_server/endpoint/endpoint.py:_Endpoint._find_version": "awaited by the requests that wait for it",
    "trainer/art_server/endpoint/template_limits.py:within_time": "a timer that stops a template",
    "trainer/loop/opening.py:open_step": "awaited at once",
    "trainer/loop/opening.py:sending_ahead": "its result is taken when the step ends",
    "trainer/loop/reading_ahead.py:ReadingAhead.begin": "its error is raised when the next batch is asked for",
    "trainer/loop/step.py:_close_completed": "its result is taken at once",
    "trainer/loop/waiting.py:Stop.unless_asked": "gathered before it returns",
    "trainer/validation/playing.py:_call_in_thread": "awaited at once; its error is raised here",
    "trainer/validation/validating.py:Validating._start_measuring": "its result is taken at the next look",
}


def _starts(node: ast.AST, scope: tuple[str, ...] = ()) -> Iterator[str]:
    for child in ast.iter_child_nodes(node):
        named = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        inner = (*scope, child.name) if named else scope  # type: ignore[attr-defined]
        if isinstance(child, ast.Call):
            function = child.func
            if getattr(function, "attr", getattr(function, "id", "")) in STARTS:
                yield ".".join(scope)
        yield from _starts(child, inner)


def test_every_task_and_thread_has_an_owner_or_is_awaited_where_it_starts() -> None:
    starts = {f"{path}:{place}" for path in MODULES for place in _starts(ast.parse((ROOT / path).read_text()))}
    assert starts == AWAITED_CALLS.keys(), "start it by runtime/tasks.py, or say in the table who awaits it"


class Panic(BaseException):
    """What an extension in Rust raises when it panics is not an Exception."""


async def _return() -> None:
    await asyncio.sleep(0)


async def _panic() -> None:
    await asyncio.sleep(0)
    raise Panic("a broken extension")


async def _await_what_is_cancelled() -> None:
    inner = asyncio.ensure_future(asyncio.sleep(30))
    asyncio.get_running_loop().call_soon(inner.cancel)
    await inner


@pytest.mark.parametrize(
    ("work", "endless", "cause"),
    [
        (_panic, True, "Panic('a broken extension')"),
        (_panic, False, "Panic('a broken extension')"),
        (_await_what_is_cancelled, False, "CancelledError()"),
        (_return, True, "None"),
        (_return, False, None),
    ],
)
async def test_the_unexpected_end_of_a_task_reaches_its_owner(
    work: Callable[[], Coroutine[Any, Any, None]], endless: bool, cause: str | None
) -> None:
    errors: list[BaseException] = []
    await asyncio.wait([start_task(work(), "clock", on_end=errors.append, endless=endless)])
    await asyncio.sleep(0)
    text = [f"task clock has ended although nobody stopped it: {cause}"] if cause else []
    assert [str(error) for error in errors] == text


async def test_an_owner_is_not_notified_of_a_task_that_it_cancels() -> None:
    errors: list[BaseException] = []
    task = start_task(asyncio.sleep(30), "clock", on_end=errors.append)
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    await asyncio.sleep(0)
    assert errors == []


def test_the_unexpected_end_of_a_thread_reaches_its_owner() -> None:
    errors: list[BaseException] = []
    start_thread(lambda: sys.exit(3), "sampler", on_end=errors.append).join()
    start_thread(lambda: None, "sampler", on_end=errors.append).join()
    start_thread(lambda: None, "sampler", on_end=errors.append, is_over=lambda: True).join()
    ended = "thread sampler has ended although nobody stopped it"
    assert [str(error) for error in errors] == [f"{ended}: SystemExit(3)", f"{ended}: None"]


async def test_the_end_of_a_task_without_an_owner_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    start_thread(lambda: sys.exit(3), "sampler").join()
    await asyncio.wait([start_task(_panic(), "heartbeat")])
    await asyncio.sleep(0)
    assert [record.levelname for record in caplog.records] == ["CRITICAL"] * 2
    assert "a broken extension" in caplog.text
