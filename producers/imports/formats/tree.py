"""The order of a trace's spans: by the tree, and among siblings by their start.

Siblings come from one process, and so from one clock; so clocks of different services that are apart do not change the
order. A span comes after those below it, as it ends after them.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from rollbus.producers.imports.formats.trace import ImportedCall, ImportedSpan, ImportedTool


class PlacedSpan(NamedTuple):
    """A span with a call or a tool, in its place."""

    span: ImportedSpan
    function: str
    """Name of the nearest agent at or above it."""


def place_spans(spans: Iterable[ImportedSpan]) -> tuple[list[PlacedSpan], int]:
    """Return the calls and tools in order, and how many calls were left out.

    A call that has a call below it is the same one, seen by two instrumentations: the inner one counts.
    """
    spans_by_id = {span.id: span for span in spans}
    children: dict[str | None, list[ImportedSpan]] = {}
    for span in sorted(spans_by_id.values(), key=lambda span: (span.start_ns, span.id)):
        parent = span.parent_id if span.parent_id in spans_by_id else None
        children.setdefault(parent, []).append(span)
    ordered: list[tuple[ImportedSpan, str]] = []
    seen: set[str] = set()
    for root in (*children.get(None, ()), *spans_by_id.values()):  # the rest only where spans are each other's parents
        _order_subtree(root, children, seen, ordered)
    wrapper_ids = _find_wrappers(spans_by_id, [span for span, _ in ordered])
    placed = [PlacedSpan(span, function) for span, function in ordered if span.content and span.id not in wrapper_ids]
    return placed, len(wrapper_ids)


def find_missing_parents(spans: Sequence[ImportedSpan]) -> int:
    """Return how many spans name a parent that is not there."""
    span_ids = {span.id for span in spans}
    return sum(1 for span in spans if span.parent_id is not None and span.parent_id not in span_ids)


def _order_subtree(
    root: ImportedSpan,
    children: dict[str | None, list[ImportedSpan]],
    seen: set[str],
    ordered: list[tuple[ImportedSpan, str]],
) -> None:
    """Append the spans from a root down, each with its agent; with a stack, as a trace may be deep."""
    stack: list[tuple[ImportedSpan, str, bool]] = [(root, "", False)]
    while stack:
        span, function, is_done = stack.pop()
        if is_done:
            ordered.append((span, function))
        elif span.id not in seen:
            seen.add(span.id)
            function = span.agent or function
            stack.append((span, function, True))
            stack += [(child, function, False) for child in reversed(children.get(span.id, ()))]


def _find_wrappers(spans_by_id: dict[str, ImportedSpan], ordered: list[ImportedSpan]) -> set[str]:
    """Return the ids of calls with a call below them, up to the next tool."""
    wrappers: set[str] = set()
    for span in ordered:
        above = spans_by_id.get(span.parent_id or "") if isinstance(span.content, ImportedCall) else None
        for _ in spans_by_id:  # a bound, where spans are each other's parents
            if above is None or above is span or isinstance(above.content, ImportedTool) or above.id in wrappers:
                break
            if isinstance(above.content, ImportedCall):
                wrappers.add(above.id)
            above = spans_by_id.get(above.parent_id or "")
    return wrappers
