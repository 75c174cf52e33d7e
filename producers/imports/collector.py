"""OTLP while it comes: spans into the store, and whole traces from there to the broker.

A trace is whole when its root span has ended and nothing of it came for `settle_ms`: exporters send in batches, each
service for itself. Without a root it is sent after `quiet_ms` without a span. A span that comes after that is late: it
is counted, and not in the episode; scores count at any time. The clock here is that of arrival, never the spans' own.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from rollbus.producers.imports.formats.otlp import SIGNALS
from rollbus.producers.imports.formats.trace import ForeignDocumentError, TracePart
from rollbus.producers.imports.sending import BATCH_TRACES, Sender, TraceConverter, send_traces
from rollbus.producers.imports.store import KEPT_MS, Store
from rollbus.producers.sending.sink import EventSink
from rollbus.runtime.health.heart import Report
from rollbus.schemas.errors import UnavailableError
from rollbus.schemas.wall_clock import wall_clock_ms

logger = logging.getLogger(__name__)
LOOK_S = 0.5
REPORT_MS = 60_000
RETRY_S = 5.0


@dataclass(slots=True, kw_only=True)
class TraceCollector:
    """Takes spans from the HTTP and the gRPC server, and sends whole traces; used by one event loop."""

    store: Store
    converter: TraceConverter
    settle_ms: int
    quiet_ms: int
    clock_ms: Callable[[], int] = wall_clock_ms
    is_healthy: bool | None = None
    """Whether the broker took the last records; None before the first."""
    _reported_ms: int = field(init=False, default=0)

    def accept(self, document: Mapping[str, Any], principal: str = "") -> str:
        """Keep the spans of a request on disk, and return why some of them were left out, or an empty text.

        `principal` is the head of the token that came with the request; empty for the owner's. Raises
        ForeignDocumentError where the request has no span that can be read, and UnavailableError for a full disk.
        """
        parts, refused, reason = self._split(document)
        if refused and not parts:
            raise ForeignDocumentError(reason)
        self.store.add([part._replace(principal=principal) for part in parts], self.clock_ms())
        if refused:
            self.store.count({"spans_refused": refused})
        self.store.commit()
        return f"{refused} were left out: {reason}" if refused else ""

    def _split(self, document: Mapping[str, Any]) -> tuple[list[TracePart], int, str]:
        """Return the parts of a request, how many spans cannot be read, and why; one such span costs no other."""
        try:
            return list(self.converter.format.split(document)), 0, ""
        except ForeignDocumentError as error:
            refused, reason = 0, str(error)
        parts: list[TracePart] = []
        for span_request in _split_by_span(document):
            try:
                parts += self.converter.format.split(span_request)
            except ForeignDocumentError:
                refused += 1
        return parts, max(refused, 1), reason

    def counts(self) -> dict[str, int]:
        """Return what was taken in, sent and left out, over all starts."""
        return {"traces_sent": 0, **self.store.counts(), "traces_open": self.store.count_owed()}

    def report(self) -> Report:
        """Say how many traces were sent, how many wait, and whether the broker takes them."""
        waiting_traces = self.store.count_owed()
        trouble = f"the broker takes no events, and {waiting_traces} traces wait" if self.is_healthy is False else None
        sent_traces = self.store.counts().get("traces_sent", 0)
        return Report(holds=("OTLP",), work=sent_traces, is_behind=trouble is not None, trouble=trouble)

    async def send_due(self, sender: Sender) -> int:
        """Send the traces that are whole, and return how many; raises UnavailableError."""
        due = {"now_ms": self.clock_ms(), "settle_ms": self.settle_ms, "quiet_ms": self.quiet_ms}
        traces = self.store.find_due(**due, limit=BATCH_TRACES)
        await send_traces(self.store, self.converter, sender, traces)
        return len(traces)

    async def run(self, make_sink: Callable[[], EventSink]) -> None:
        """Send what is whole until cancelled; while the broker is away, traces stay in the store."""
        sender = Sender(make_sink)
        try:
            while True:
                try:
                    sent_traces = await self.send_due(sender)
                    has_reported = await self._report_if_due(sender)
                    if sent_traces or has_reported:
                        self.is_healthy = True
                    await asyncio.sleep(0 if sent_traces == BATCH_TRACES else LOOK_S)
                except UnavailableError as error:
                    if self.is_healthy is not False:
                        logger.warning("traces wait in the store: %s", error)
                    self.is_healthy = False
                    await asyncio.sleep(RETRY_S)
                except Exception:  # to end here would leave spans unsent, and they still come in
                    logger.exception("sending failed; it is tried again")
                    self.is_healthy = False
                    await asyncio.sleep(RETRY_S)
        finally:
            await sender.close()

    async def _report_if_due(self, sender: Sender) -> bool:
        """Send the counts, once a minute; return whether the broker has taken them now."""
        now, has_reported = self.clock_ms(), False
        if now - self._reported_ms >= REPORT_MS:
            self.store.forget_sent(now - KEPT_MS)
            self.store.commit()
            counts = self.store.counts()
            if counts and self._reported_ms:
                await sender.send([self.converter.report(counts, now)])
                has_reported = True
            self._reported_ms = now
        return has_reported


def _split_by_span(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return a request of its own for each span or log record of a request; what has another form is left out."""
    return [
        {groups: [{**group, scopes: [{**scope, rows: [row]}]}]}
        for groups, scopes, rows in SIGNALS
        for group in _dicts(document.get(groups))
        for scope in _dicts(group.get(scopes))
        for row in _dicts(scope.get(rows))
    ]


def _dicts(value: Any) -> list[dict[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []
