"""The trace that an episode belongs to, as the W3C `traceparent` text: the caller's, else that of OpenTelemetry's
current span where the host uses OpenTelemetry.

A label of the episode and a header to other processes carry it, so that traces and episodes can be joined.
"""

import re
import sys

TRACEPARENT = "traceparent"
_VALID = re.compile(r"[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")


def valid_traceparent(value: object) -> str | None:
    """Return a well-formed traceparent; None for anything else."""
    return value if isinstance(value, str) and _VALID.fullmatch(value) else None


def current_traceparent() -> str | None:
    """Return the traceparent of the current span; None where OpenTelemetry is not loaded, or no span is current."""
    trace = sys.modules.get("opentelemetry.trace")
    if trace is None:
        return None
    span = trace.get_current_span().get_span_context()
    return f"00-{span.trace_id:032x}-{span.span_id:016x}-{int(span.trace_flags):02x}" if span.is_valid else None
