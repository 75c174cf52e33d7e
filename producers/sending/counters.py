"""What a producer did and lost, as numbers that add up.

events_emitted = events_delivered + events_spooled + events_queued + every events_dropped.<reason>

`events_spooled` are those that a process left on disk when it ended; what went to disk before counts as delivered.
`prometheus_text` writes the counts as text that Prometheus reads; the host serves it, with its own metrics.
"""

import threading
from collections.abc import Mapping

PREFIX = "rollbus_producer"
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_GAUGES = ("events_queued", "bytes_queued")


class Counters:
    """Counts by name, from any thread; a name may carry a reason after a dot."""

    def __init__(self) -> None:
        """Start with nothing counted."""
        # Re-entrant: a stream abandoned to the garbage collector counts in the middle of anything.
        self._lock = threading.RLock()
        self._counts: dict[str, int] = {}

    def add(self, name: str, amount: int = 1) -> None:
        """Add to a count, which begins at 0."""
        with self._lock:
            self._counts[name] = self._counts.get(name, 0) + amount

    def get(self, name: str) -> int:
        """Return one count; 0 where nothing was counted."""
        return self._counts.get(name, 0)

    def total(self, prefix: str) -> int:
        """Return the sum of a name and of all its reasons."""
        with self._lock:
            return sum(count for name, count in self._counts.items() if name == prefix or name.startswith(prefix + "."))

    def snapshot(self) -> Mapping[str, int]:
        """Return all counts as they are now."""
        with self._lock:
            return dict(sorted(self._counts.items()))

    def after_fork(self) -> None:
        """Begin at 0 in a child process: the parent reports what it counted. The lock is new, too."""
        self.__init__()  # type: ignore[misc]


def prometheus_text(counters: Mapping[str, int], *, healthy: bool | None, producer: str = "") -> str:
    """Return one sample per counter; a reason behind a counter's dot is its label `reason`."""
    by_name: dict[str, list[tuple[str, int]]] = {}
    for name, count in counters.items():
        base, _, reason = name.partition(".")
        by_name.setdefault(base, []).append((reason, count))
    lines = []
    for base, samples in sorted(by_name.items()):
        is_gauge = base in _GAUGES
        metric = f"{PREFIX}_{base}" if is_gauge else f"{PREFIX}_{base}_total"
        lines.append(f"# HELP {metric} {base.replace('_', ' ').capitalize()}, as this recorder has counted.")
        lines.append(f"# TYPE {metric} {'gauge' if is_gauge else 'counter'}")
        lines += [
            f"{metric}{_write_labels(producer=producer, reason=reason)} {count}" for reason, count in sorted(samples)
        ]
    if healthy is not None:
        lines.append(f"# HELP {PREFIX}_healthy 1 if the sink took the last events, and not only its spool.")
        lines += [
            f"# TYPE {PREFIX}_healthy gauge",
            f"{PREFIX}_healthy{_write_labels(producer=producer)} {int(healthy)}",
        ]
    return "\n".join(lines) + "\n"


def _write_labels(**labels: str) -> str:
    label_texts = [f'{name}="{_escape(value)}"' for name, value in labels.items() if value]
    return "{" + ",".join(label_texts) + "}" if label_texts else ""


def _escape(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
