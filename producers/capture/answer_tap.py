"""The bytes of one answer on their way to the application, kept for the record and read after its end.

Of a stream, whole events pass at once. An answer in one piece passes at its end, if something is to be taken out of it.
"""

import re
from collections.abc import Mapping
from functools import partial

from rollbus.producers.capture.attributes import parse
from rollbus.producers.capture.call import RecordedCall
from rollbus.producers.capture.surface import Surface
from rollbus.producers.turns.answer import ServerAnswer

EVENT_STREAM = "text/event-stream"
DATA, DONE = b"data:", b"[DONE]"
_EVENT_ENDS = (b"\n\n", b"\r\n\r\n", b"\r\r")
_BETWEEN_EVENTS = re.compile(rb"\n\n|\r\n\r\n|\r\r")
CUT_ANSWER = "call_failed"


class AnswerTap:
    """Takes the answer's bytes and returns what the application is to see of them."""

    def __init__(self, call: RecordedCall, headers: Mapping[str, str]) -> None:
        """Begin before the first byte."""
        self.is_stream = EVENT_STREAM in headers.get("content-type", "")
        self._call, self._cut = call, call.cut(is_stream=self.is_stream)
        self._pieces: list[bytes] | None = []
        """None once they are recorded."""
        self._waiting = b""
        """The beginning of an event, or all of an answer in one piece, that is still to be shown."""
        call.open(self)

    @property
    def changes(self) -> bool:
        """Whether the application sees other bytes than came."""
        return self._cut is not None

    def feed(self, piece: bytes) -> bytes:
        """Take the next bytes; return those to show now."""
        if (pieces := self._pieces) is not None:
            pieces.append(piece)
        if (cut := self._cut) is None:
            return piece
        if not self.is_stream:
            self._waiting += piece
            return b""
        if self._waiting or (piece[-2:] != b"\n\n" and not piece.endswith(_EVENT_ENDS)):
            data = self._waiting + piece
            end = max(data.rfind(mark) + len(mark) if mark in data else 0 for mark in _EVENT_ENDS)
            piece, self._waiting = data[:end], data[end:]
        try:
            return cut(piece)
        except Exception as error:
            self._call.guard.failed("hide", error)
            return piece

    def end(self) -> bytes:
        """Record the answer, whose end has come; return what is still to be shown."""
        rest, self._waiting = self._waiting, b""
        self.finish(complete=True)
        return self._call.guard.call("hide", self._cut, rest, default=rest) if self._cut is not None and rest else rest

    def abandon(self) -> None:
        """Record it as far as it came."""
        self.finish(complete=False)

    def finish(self, *, complete: bool, error: BaseException | None = None) -> None:
        """Record once, however often it ends; with an error that is not the reader's own, as failed."""
        self._call.guard.call("finish_answer", self._finish, complete, error, default=None)

    def _finish(self, complete: bool, error: BaseException | None) -> None:
        if self._pieces is None:
            return
        pieces, self._pieces = self._pieces, None
        self._call.close(self)
        if not self.is_stream and error is not None:
            self._call.fail(error)
            return
        read = read_stream if self.is_stream else read_whole
        self._call.record_answer(partial(read, self._call.surface, complete), pieces, streamed=self.is_stream)


def read_whole(surface: Surface, complete: bool, pieces: list[bytes]) -> ServerAnswer:
    """Return an answer in one piece; without content where it was cut or is not JSON."""
    try:
        body = parse(b"".join(pieces))
    except ValueError:
        return ServerAnswer(problem=CUT_ANSWER if complete else "not_captured")
    return surface.read_response(body)


def read_stream(surface: Surface, complete: bool, pieces: list[bytes]) -> ServerAnswer:
    """Return the answer that server-sent events make together, whichever way the network cut them."""
    reader, is_broken = surface.make_reader(), False
    for event in _BETWEEN_EVENTS.split(b"".join(pieces)):
        lines = [line[len(DATA) :].strip() for line in event.splitlines() if line.startswith(DATA)]
        if not lines:
            continue
        if lines == [DONE]:
            complete = True
            continue
        try:
            reader.read(parse(b"\n".join(lines)))
        except Exception:  # cut, or a shape that no server had so far
            is_broken = True
    return reader.answer(complete=complete and not is_broken)
