"""What ClickHouse answers when it refuses: exception code, HTTP status, message.

The engine reports errors as text ('Code: 60. DB::Exception: … (UNKNOWN_TABLE)'); clients read the code from a header.
"""

import re

SYNTAX_ERROR = 62
NOT_IMPLEMENTED = 48
UNKNOWN_STORAGE = 56
UNKNOWN_FUNCTION = 46
UNKNOWN_TYPE_OF_QUERY = 78
READONLY = 164
INTO_OUTFILE_NOT_ALLOWED = 319
TOO_MANY_SIMULTANEOUS_QUERIES = 202
TOO_MANY_BYTES = 307
SESSION_NOT_FOUND = 372
SESSION_IS_LOCKED = 373
CANNOT_DECOMPRESS = 354
INVALID_SESSION_TIMEOUT = 374
AUTHENTICATION_FAILED = 516
UNKNOWN_EXCEPTION = 1002
"""Codes are ClickHouse's own (src/Common/ErrorCodes.cpp), so that clients tell causes apart as on a server."""

_NOT_FOUND = frozenset({46, 47, 50, 56, 57, 60, 81, 115, 417, 456})
_BAD_REQUEST = frozenset({6, 26, 27, 33, 36, 38, 41, 43, 44, 53, 62, 70, 72, 78, 117, 131, 164, 354, 374, 386})
_FORBIDDEN = frozenset({497, 516})
_CODE = re.compile(r"Code: (\d+)\.")
_SYMBOL = {
    SYNTAX_ERROR: "SYNTAX_ERROR",
    NOT_IMPLEMENTED: "NOT_IMPLEMENTED",
    UNKNOWN_STORAGE: "UNKNOWN_STORAGE",
    UNKNOWN_FUNCTION: "UNKNOWN_FUNCTION",
    UNKNOWN_TYPE_OF_QUERY: "UNKNOWN_TYPE_OF_QUERY",
    READONLY: "READONLY",
    INTO_OUTFILE_NOT_ALLOWED: "INTO_OUTFILE_NOT_ALLOWED",
    TOO_MANY_SIMULTANEOUS_QUERIES: "TOO_MANY_SIMULTANEOUS_QUERIES",
    TOO_MANY_BYTES: "TOO_MANY_BYTES",
    SESSION_NOT_FOUND: "SESSION_NOT_FOUND",
    SESSION_IS_LOCKED: "SESSION_IS_LOCKED",
    CANNOT_DECOMPRESS: "CANNOT_DECOMPRESS",
    INVALID_SESSION_TIMEOUT: "INVALID_SESSION_TIMEOUT",
    AUTHENTICATION_FAILED: "AUTHENTICATION_FAILED",
    UNKNOWN_EXCEPTION: "UNKNOWN_EXCEPTION",
}


class ClickHouseError(Exception):
    """A statement that was refused, as a ClickHouse server would say it."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code

    @property
    def status(self) -> int:
        """HTTP status for the code; what is not the client's mistake is 500."""
        if self.code in _FORBIDDEN:
            return 403
        if self.code in _NOT_FOUND:
            return 404
        return 400 if self.code in _BAD_REQUEST else 500


def refusal(code: int, message: str) -> ClickHouseError:
    """An error of the endpoint itself, worded as the engine words its own."""
    return ClickHouseError(code, f"Code: {code}. DB::Exception: {message} ({_SYMBOL[code]})")


def from_engine(error: Exception) -> ClickHouseError:
    """The engine's exception with its code; what stands before 'Code:' is Python's wrapping."""
    text = str(error)
    found = _CODE.search(text)
    if found is None:
        return refusal(UNKNOWN_EXCEPTION, text or type(error).__name__)
    return ClickHouseError(int(found.group(1)), text[found.start() :].strip())
