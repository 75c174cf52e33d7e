"""A recorder's counters as text that Prometheus reads; the host serves it, with its own metrics."""

from collections.abc import Mapping

PREFIX = "rollbus_producer"
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_GAUGES = ("events_queued", "bytes_queued")


def prometheus_text(counters: Mapping[str, int], *, healthy: bool | None, producer: str = "") -> str:
    """Return one sample per counter; a reason behind a counter's dot is its label `reason`."""
    by_name: dict[str, list[tuple[str, int]]] = {}
    for name, count in counters.items():
        base, _, reason = name.partition(".")
        by_name.setdefault(base, []).append((reason, count))
    lines = []
    for base, samples in sorted(by_name.items()):
        gauge = base in _GAUGES
        metric = f"{PREFIX}_{base}" if gauge else f"{PREFIX}_{base}_total"
        lines.append(f"# HELP {metric} {base.replace('_', ' ').capitalize()}, as this recorder has counted.")
        lines.append(f"# TYPE {metric} {'gauge' if gauge else 'counter'}")
        lines += [f"{metric}{_labels(producer=producer, reason=reason)} {count}" for reason, count in sorted(samples)]
    if healthy is not None:
        lines.append(f"# HELP {PREFIX}_healthy 1 if the sink took the last events, and not only its spool.")
        lines += [f"# TYPE {PREFIX}_healthy gauge", f"{PREFIX}_healthy{_labels(producer=producer)} {int(healthy)}"]
    return "\n".join(lines) + "\n"


def _labels(**labels: str) -> str:
    given = [f'{name}="{_escaped(value)}"' for name, value in labels.items() if value]
    return "{" + ",".join(given) + "}" if given else ""


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
