"""Which episode a proxied request belongs to, and what is recorded for each principal.

In this order: the header that `Recorder.headers` made in another process; the episode in the path, opened here by the
control routes; with a task configured, an episode of the request's own, unless a header says that its episode is not
sampled. Any other request is not recorded. Each principal has a recorder of its own (`Desk`), which signs in its name:
the proxy says who it was, and not the program.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field

from rollbus.producers.episode.episode import Episode
from rollbus.producers.episode.headers import EPISODE_HEADER, is_unsampled
from rollbus.producers.recorder import Recorder

MAX_OPEN = 10_000
"""Episodes opened here whose end has not come; beyond it the oldest is ended as timed out."""
DELIVERY_TIMEOUT_S = 0.25
"""How long an answer's last byte may wait until its record is with the broker: no end of episode overtakes it then."""


class UnknownEpisodeError(LookupError):
    """The path names an episode that was not opened here, or has ended."""


class Episodes:
    """The episodes that were opened through the proxy."""

    def __init__(self, recorder: Recorder, task: str | None) -> None:
        """Requests without an episode are episodes of `task`, one each; without a task they are not recorded."""
        self._recorder, self._task = recorder, task
        self._open: OrderedDict[str, Episode] = OrderedDict()

    def open(self, *, task: str, **fields: object) -> Episode:
        """Start an episode; its requests come under a path of its own."""
        episode = self._recorder.start(task=task, **fields)  # type: ignore[arg-type]
        self._open[episode.id] = episode
        while len(self._open) > MAX_OPEN:
            self._open.popitem(last=False)[1].end("timeout")
        return episode

    def get(self, episode_id: str) -> Episode:
        """Return an open episode; raises UnknownEpisodeError."""
        if (episode := self._open.get(episode_id)) is None:
            raise UnknownEpisodeError(f"no episode {episode_id!r} is open here: it has ended, or never began")
        return episode

    def close(self, episode_id: str) -> Episode:
        """Take an episode from the open ones, for its end; raises UnknownEpisodeError."""
        episode = self.get(episode_id)
        del self._open[episode_id]
        return episode

    def close_all(self) -> None:
        """End what is still open."""
        while self._open:
            self._open.popitem()[1].end("timeout")

    def of_request(self, headers: Mapping[str, str], episode_id: str | None) -> AbstractContextManager[Episode | None]:
        """Return a block in which the request's episode is known; None where it is not recorded."""
        if EPISODE_HEADER in headers:
            return self._recorder.attach(headers)
        if episode_id is not None:
            return nullcontext(self.get(episode_id))
        if is_unsampled(headers):
            return nullcontext(None)
        if self._task is not None:
            return self._recorder.episode(task=self._task)
        self._recorder.outbox.count_call_outside("name its episode, or start the proxy with `--task`")
        return nullcontext(None)


@dataclass(slots=True)
class Desk:
    """What is recorded for one principal."""

    recorder: Recorder
    episodes: Episodes
    _flushing: asyncio.Task[bool] | None = field(init=False, default=None)

    async def flush(self) -> None:
        """Wait until what is recorded so far is with the broker: one thread waits for all answers that do."""
        if self.recorder.healthy is False:
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(DELIVERY_TIMEOUT_S):
                if self._flushing is not None and not self._flushing.done():
                    await asyncio.shield(self._flushing)  # it began before this answer was recorded
                if self._flushing is None or self._flushing.done():
                    self._flushing = asyncio.create_task(asyncio.to_thread(self.recorder.flush, DELIVERY_TIMEOUT_S))
                await asyncio.shield(self._flushing)

    async def close(self) -> None:
        """End what is still open, and send what is queued."""
        self.episodes.close_all()
        await asyncio.to_thread(self.recorder.close)
