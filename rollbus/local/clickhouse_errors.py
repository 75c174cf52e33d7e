"""What ClickHouse answers when it refuses: exception code, HTTP status, message.

The engine reports errors as text ('Code: 60. DB::Exception: … (UNKNOWN_TABLE)'); clients read the code from a header.
"""

import re

SYNTAX_ERROR = 62
BAD_ARGUMENTS = 36
CANNOT_PARSE_INPUT_ASSERTION_FAILED = 27
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

_NOT_FOUND = frozenset({46, 47, 50, 56, 57, 60, 63, 73, 81, 115, 152, 180, 336, 417, 456, 511})
_BAD_REQUEST = frozenset(
    {6, 8, 15, 25, 26, 27, 32, 33, 36, 37, 38, 41, 43, 44, 53, 62, 70, 72, 78, 117, 123, 131, 164, 167, 168, 223, 306,
     321, 354, 374, 376, 386, 427, 441, 467, 675, 676}
)  # fmt: skip
"""Codes of what a client asked wrongly: a server's, and some more for which it says 500."""
_FORBIDDEN = frozenset({497, 516})
_CODE = re.compile(r"Code: (\d+)\.")
_SYMBOL = {
    SYNTAX_ERROR: "SYNTAX_ERROR",
    BAD_ARGUMENTS: "BAD_ARGUMENTS",
    CANNOT_PARSE_INPUT_ASSERTION_FAILED: "CANNOT_PARSE_INPUT_ASSERTION_FAILED",
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
        if self.code == NOT_IMPLEMENTED:
            return 501
        return 400 if self.code in _BAD_REQUEST else 500


def refusal(code: int, message: str) -> ClickHouseError:
    """An error of the endpoint itself, worded as the engine words its own."""
    return ClickHouseError(code, f"Code: {code}. DB::Exception: {message} ({_SYMBOL[code]})")


def from_engine(error: Exception) -> ClickHouseError:
    """The engine's exception with its code; what stands before 'Code:' is Python's wrapping."""
    if isinstance(error, UnicodeError):
        return refusal(SYNTAX_ERROR, f"The statement is not UTF-8: {error}")
    text = str(error)
    found = _CODE.search(text)
    if found is None:
        return refusal(UNKNOWN_EXCEPTION, text or type(error).__name__)
    return ClickHouseError(int(found.group(1)), text[found.start() :].strip())
