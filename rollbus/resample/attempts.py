"""Requests for more attempts → episodes: the user's own agent, run again on the same opening, marked as resampled.

An attempt is made at most once. The request decides its episode's id, and its offset is committed before the attempt
begins: a killed process leaves a short group, never a duplicate. The request also fixes how many tokens an attempt may
sample. Its clients stay within that, and it ends as an error if a call may have sampled unseen.
"""

import asyncio
import contextvars
import functools
import json
import logging
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from inspect import isawaitable, iscoroutinefunction
from typing import Any, TypeVar

from rollbus.producers import Episode, Recorder
from rollbus.resample.allowance import Allowance, limit_client
from rollbus.runtime.cancelling import is_being_cancelled
from rollbus.runtime.health.heart import Report
from rollbus.runtime.metrics import ATTEMPT_SECONDS
from rollbus.runtime.tasks import start_task
from rollbus.schemas.read_only import ReadOnlyMapping
from rollbus.schemas.records.events import Message
from rollbus.schemas.records.groups import ResampleRequested
from rollbus.schemas.wall_clock import wall_clock_ms
from rollbus.streams.stages.scoring.threads import MAX_HUNG, CallThreads

logger = logging.getLogger(__name__)
Client = TypeVar("Client")
CANCEL_S = 5.0
"""How long a cancelled agent has to clean up."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """What the user's agent receives: the opening, and the episode that its calls belong to."""

    task: str
    example_id: str | None
    messages: list[dict[str, Any]]
    """The messages before the first completion, as the API takes them."""
    labels: Mapping[str, str]
    model: str
    """Without the version: the newest weights sample the attempt."""
    episode: Episode
    recorder: Recorder
    allowance: Allowance
    """Tokens that the attempt may still sample."""

    def wrap(self, client: Client) -> Client:
        """Return a client whose calls are turns of this attempt and stay within its allowance."""
        return self.recorder.wrap(limit_client(client, self.allowance), episode=self.episode)


class Resampler:
    """Makes attempts, `concurrency` at once; what an agent raises ends its attempt alone."""

    def __init__(
        self,
        agent: Callable[[Attempt], Any],
        recorder: Recorder,
        *,
        concurrency: int = 4,
        timeout_s: float = 300.0,
        clock_ms: Callable[[], int] = wall_clock_ms,
    ) -> None:
        self._agent, self._recorder, self._clock_ms = agent, recorder, clock_ms
        self._slots = asyncio.Semaphore(concurrency)
        self._timeout_s = timeout_s
        self._threads = CallThreads("attempt")
        self._tasks: set[asyncio.Task[None]] = set()
        self.left_behind: set[asyncio.Task[None]] = set()
        """Calls of an agent that ignored its cancellation."""
        self.counts: Counter[str] = Counter()
        """`made`, `failed` and `too_late`."""

    def report(self, run_id: str) -> Report:
        """Say whose attempts are made, and whether any is under way."""
        hung = f"{len(self.left_behind)} attempts go on after their cancellation" if self.left_behind else None
        return Report(
            holds=(f"run {run_id}",),
            work=sum(self.counts.values()),
            is_behind=bool(self._tasks),
            trouble=hung,
        )

    async def wait_for_room(self) -> None:
        """Wait until another attempt may begin."""
        await self._slots.acquire()

    def begin(self, request: ResampleRequested, written_ms: int | None = None) -> None:
        """Make an attempt in the background, after `wait_for_room`.

        `written_ms` is when the request was written, by the wall clock; its own times are stream time, which lags
        behind after an outage. Without it the two are taken as equal.
        """
        task = start_task(self._make(request, written_ms), f"attempt {request.episode_id}", endless=False)
        self._tasks.add(task)
        task.add_done_callback(self._on_attempt_end)

    async def finish(self) -> None:
        """Wait for the attempts under way."""
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def under_way(self) -> tuple[asyncio.Task[None], ...]:
        """Return the attempts that have begun and not ended."""
        return tuple(self._tasks)

    def _on_attempt_end(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._slots.release()

    async def _make(self, request: ResampleRequested, written_ms: int | None) -> None:
        since_ms = request.requested_at_ms if written_ms is None else written_ms
        if self._clock_ms() - since_ms > request.useful_until_ms - request.requested_at_ms:
            self.counts["too_late"] += 1
            logger.info("attempt %s is too late for its group", request.episode_id)
            return
        try:
            with ATTEMPT_SECONDS.time():
                await self._in_episode(request)
            self.counts["made"] += 1
        except BaseException as error:  # a user's agent may raise anything
            if isinstance(error, asyncio.CancelledError) and is_being_cancelled():
                raise  # the attempt was cancelled, and not a task of the agent
            self._log_failure(request, error)

    def _log_failure(self, request: ResampleRequested, error: BaseException) -> None:
        self.counts["failed"] += 1
        logger.warning("attempt %s of task %s failed: %r", request.episode_id, request.task, error)

    async def _in_episode(self, request: ResampleRequested) -> None:
        scope = self._recorder.episode(
            task=request.task,
            example_id=request.example_id,
            agent=request.agent or None,
            labels={**request.labels, "resampled_from": request.trajectory_id},
            episode_id=request.episode_id,
            resampled=True,
        )
        async with scope as episode:
            attempt = Attempt(
                task=request.task,
                example_id=request.example_id,
                messages=[_plain(message) for message in request.messages],
                labels=ReadOnlyMapping(request.labels, "attempt.labels"),
                model=request.model,
                episode=episode,
                recorder=self._recorder,
                allowance=Allowance(request.max_tokens),
            )
            await self._within_time(attempt)
            if attempt.allowance.unsure:
                episode.end("error", "a call failed that may have been sampled all the same")

    async def _within_time(self, attempt: Attempt) -> None:
        """Call the agent in its own task; one that continues after its cancellation is left behind."""
        if len(self.left_behind) >= MAX_HUNG:
            raise RuntimeError(
                f"{len(self.left_behind)} agents continue after their cancellation; repair the agent and restart"
            )
        call = asyncio.create_task(self._run(attempt), name=f"agent {attempt.episode.id}")
        try:
            await asyncio.wait([call], timeout=self._timeout_s)
            if call.done():
                return call.result()
            raise TimeoutError(f"the agent took more than {self._timeout_s} s")
        finally:
            if not call.done():
                self.left_behind.add(call)
                call.add_done_callback(self._came_back)
                call.cancel()
                await asyncio.wait([call], timeout=CANCEL_S)

    def _came_back(self, call: asyncio.Task[None]) -> None:
        self.left_behind.discard(call)
        if not call.cancelled() and call.exception() is not None:
            logger.info("an agent that was left behind raised %r", call.exception())

    async def _run(self, attempt: Attempt) -> None:
        try:
            await self._call(attempt)
        except (SystemExit, KeyboardInterrupt) as error:  # in a task they would end the process
            raise RuntimeError(repr(error)) from error

    async def _call(self, attempt: Attempt) -> None:
        """Call the agent; a sync one in its own thread, inside the same episode: many may hang at once."""
        if iscoroutinefunction(self._agent) or iscoroutinefunction(getattr(self._agent, "__call__", None)):  # noqa: B004
            await self._agent(attempt)
            return
        result = await self._threads.call(functools.partial(contextvars.copy_context().run, self._agent, attempt))
        if isawaitable(result):
            await result


def _plain(message: Message) -> dict[str, Any]:
    """Return a message as the chat API takes it."""
    content = json.loads(message.parts) if message.parts else message.content
    plain: dict[str, Any] = {"role": message.role, "content": content}
    if message.tool_calls:
        plain["tool_calls"] = json.loads(message.tool_calls)
    plain.update((name, value) for name in ("name", "tool_call_id") if (value := getattr(message, name)))
    return plain
