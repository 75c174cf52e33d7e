"""The errors of rollbus: who failed, and whether trying again can help.

    RollbusError
    ├── ConfigurationError      the operator must change a setting; the process refuses to start
    ├── RecordError             these bytes or this record are wrong: dead letter, go on
    │   ├── UndecodableError    not a frame or schema that we know, or a body that does not fit it
    │   ├── InvalidRecordError  decoded, but the record contradicts itself
    │   ├── RecordTooLargeError larger than a topic takes
    │   └── UntrustedRecordError it says what only the owner may say, without the owner's signature
    ├── DataLossError           records that were promised are gone; stop and show which
    ├── FencedError             another process took over; this one must stop
    ├── RunStoppedError         a training run ended itself; the message names what to look at
    └── ServiceError            an outside service failed
        ├── UnavailableError    no answer, a time-out, a refusal that passes: retriable
        └── RejectedError       it refused: trying again gives the same answer

`retriable` is an attribute of the class, so that one place decides between retry and dead letter.
"""

from collections.abc import Iterable
from difflib import get_close_matches


class RollbusError(Exception):
    """Base of every error raised by rollbus itself."""

    retriable = False


class ConfigurationError(RollbusError):
    """A setting is missing, wrong or contradicts another; the message names the setting and its remedy."""


class RecordError(RollbusError):
    """A record cannot be used; it becomes a dead letter with this error's class and message."""


class UndecodableError(RecordError):
    """Bytes that no known schema can read."""


class InvalidRecordError(RecordError):
    """A record that was read but breaks a rule of its type."""


class RecordTooLargeError(RecordError):
    """A record that does not fit into its topic."""


class UntrustedRecordError(RecordError):
    """A record of control that its owner has not signed."""


class DataLossError(RollbusError):
    """Records between two known positions no longer exist."""


class FencedError(RollbusError):
    """A newer owner of the same transactional id or model has taken over."""


class RunStoppedError(RollbusError):
    """A training run has stopped until an operator acts."""


class ServiceError(RollbusError):
    """A service outside this process failed."""


class UnavailableError(ServiceError):
    """The service did not answer, or cannot answer at present."""

    retriable = True


class RejectedError(ServiceError):
    """The service answered and refused the request."""


def nearest(name: str, candidates: Iterable[str]) -> str:
    """Return the end of a message about an unknown name: the nearest known name, or all known names."""
    names = sorted(candidates)
    near = get_close_matches(name, names, n=1)
    return f"did you mean {near[0]!r}?" if near else f"there are {', '.join(names) or 'none'}"


def describe_error(error: BaseException) -> str:
    """Return what an error says; of another's class also its name, since its text may be no sentence."""
    return str(error) if isinstance(error, RollbusError) else f"{type(error).__name__}: {error}"


def is_retriable(error: BaseException) -> bool:
    """Return whether trying again can help: another's error passes if a disk or the memory was full."""
    return error.retriable if isinstance(error, RollbusError) else isinstance(error, OSError | MemoryError)
