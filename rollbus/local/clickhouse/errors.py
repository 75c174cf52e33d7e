"""What ClickHouse answers when it refuses: exception code, HTTP status, message.

The engine reports errors as text ('Code: 60. DB::Exception: … (UNKNOWN_TABLE)'); clients read the code from a header.
"""

import re
from enum import IntEnum


class Code(IntEnum):
    """ClickHouse's own codes (src/Common/ErrorCodes.cpp), so that clients can distinguish causes as on a server."""

    BAD_ARGUMENTS = 36
    UNKNOWN_FUNCTION = 46
    NOT_IMPLEMENTED = 48
    UNKNOWN_STORAGE = 56
    SYNTAX_ERROR = 62
    UNKNOWN_TYPE_OF_QUERY = 78
    TIMEOUT_EXCEEDED = 159
    READONLY = 164
    TOO_MANY_SIMULTANEOUS_QUERIES = 202
    TOO_MANY_BYTES = 307
    INTO_OUTFILE_NOT_ALLOWED = 319
    CANNOT_DECOMPRESS = 354
    SESSION_IS_LOCKED = 373
    AUTHENTICATION_FAILED = 516
    UNKNOWN_EXCEPTION = 1002


_NOT_FOUND = frozenset({46, 47, 50, 56, 57, 60, 63, 73, 81, 115, 152, 180, 336, 417, 456, 511})
_BAD_REQUEST = frozenset(
    {6, 8, 15, 25, 26, 27, 32, 33, 36, 37, 38, 41, 43, 44, 53, 62, 70, 72, 78, 117, 123, 131, 164, 167, 168, 223, 306,
     321, 354, 376, 386, 427, 441, 467, 675, 676}
)  # fmt: skip
"""Codes for a client's mistakes: a server's list, and some codes for which a server answers 500."""
_FORBIDDEN = frozenset({497, 516})
_CODE = re.compile(r"Code: (\d+)\.")


class ClickHouseError(Exception):
    """A refused statement, with the message of a ClickHouse server."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code

    @property
    def status(self) -> int:
        """HTTP status for the code; 500 if the client made no mistake."""
        if self.code in _FORBIDDEN:
            return 403
        if self.code in _NOT_FOUND:
            return 404
        if self.code == Code.NOT_IMPLEMENTED:
            return 501
        return 400 if self.code in _BAD_REQUEST else 500


def refusal(code: Code, message: str) -> ClickHouseError:
    """An error of the endpoint itself, in the engine's wording."""
    return ClickHouseError(code, f"Code: {code}. DB::Exception: {message} ({code.name})")


def from_engine(error: Exception) -> ClickHouseError:
    """The engine's exception with its code, without Python's text before 'Code:'."""
    if isinstance(error, UnicodeError):
        return refusal(Code.SYNTAX_ERROR, f"The statement is not UTF-8: {error}")
    text = str(error)
    match = _CODE.search(text)
    if match is None:
        return refusal(Code.UNKNOWN_EXCEPTION, text or type(error).__name__)
    return ClickHouseError(int(match.group(1)), text[match.start() :].strip())
