"""The settings of a recorder, checked once at `init`: a mistake here raises, nothing later does."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

from rollbus.producers.turns.redaction import Field, Privacy
from rollbus.schemas.errors import ConfigurationError
from rollbus.schemas.limits import MAX_RECORD_BYTES
from rollbus.schemas.namespaces import DEFAULT_NAMESPACE, wrong_namespace
from rollbus.schemas.records.events import LogprobMode

CaptureMode = Literal["force", "request", "passive"]
"""force: ask for log-probs and token ids on every call; request: except where the application says no itself;
passive: never change a call.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecorderSettings:
    """Settings of one recorder."""

    namespace: str = DEFAULT_NAMESPACE
    producer: str = ""
    environment: str = ""
    agent: str = ""
    """Default for episodes that name none."""
    enabled: bool = True
    sample_rate: float = 1.0
    """Share of groups (or of episodes without a group) that is recorded."""
    redact: Callable[[str], str] | None = None
    """Runs over every text before it leaves the process; a turn whose text it changes loses its tokens."""
    withhold: frozenset[Field] = frozenset()
    """Fields whose texts never leave the process, nor come to `redact`."""
    logprobs: CaptureMode = "force"
    logprob_mode: LogprobMode = "unknown"
    """What the servers' log-probs are of; see `TurnRecorded.logprob_mode`."""
    max_queue_events: int = 50_000
    max_queue_bytes: int = 128 * 1024 * 1024
    report_interval_s: float = 30.0
    spool_bytes: int = 256 * 1024 * 1024
    max_record_bytes: int = MAX_RECORD_BYTES
    """What is larger is not sent; its episode is dropped with the reason `too_large`."""

    @property
    def privacy(self) -> Privacy:
        """Return what may leave the process."""
        return Privacy(self.redact, self.withhold)

    def __post_init__(self) -> None:
        """Refuse settings that cannot work; raises ConfigurationError naming all of them."""
        namespace = wrong_namespace(self.namespace)
        mistakes = [f"namespace is {self.namespace!r}; {namespace}"] if namespace else []
        mistakes += [
            message
            for wrong, message in (
                (not 0 <= self.sample_rate <= 1, f"sample_rate is {self.sample_rate}; it must be from 0 to 1"),
                (
                    self.logprobs not in get_args(CaptureMode),
                    f"logprobs is {self.logprobs!r}; choose one of {', '.join(get_args(CaptureMode))}",
                ),
                (
                    self.logprob_mode not in get_args(LogprobMode),
                    f"logprob_mode is {self.logprob_mode!r}; choose one of {', '.join(get_args(LogprobMode))}",
                ),
                (
                    self.redact is not None and not callable(self.redact),
                    "redact must be a function from text to text",
                ),
                (
                    not self.withhold <= set(get_args(Field)),
                    f"withhold has {', '.join(sorted(self.withhold - set(get_args(Field))))}; "
                    f"choose among {', '.join(get_args(Field))}",
                ),
                (self.max_queue_events < 1, f"max_queue_events is {self.max_queue_events}; it must be at least 1"),
                (self.max_queue_bytes < 1, f"max_queue_bytes is {self.max_queue_bytes}; it must be at least 1"),
                (self.spool_bytes < 1, f"spool_bytes is {self.spool_bytes}; it must be at least 1"),
                (self.report_interval_s <= 0, f"report_interval_s is {self.report_interval_s}; it must be above 0"),
            )
            if wrong
        ]
        if mistakes:
            raise ConfigurationError("; ".join(mistakes))
