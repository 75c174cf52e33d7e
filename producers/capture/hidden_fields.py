"""Take out of an answer's bytes what the application did not ask for, without making objects of them.

A name in quotes with a colon behind it is a field's name and never part of a text: a quote inside a text has a
backslash in front. So a field can be found by its name, and its value skipped by a pattern. This runs for each event of
a stream while the application waits: what it looks for ends in a rare character, which a search compares first.
"""

import re
from collections.abc import Callable

from rollbus.producers.capture.surface import Wishes

Cut = Callable[[bytes], bytes]
DEPTH = 6
"""Brackets within brackets in the value of `logprobs`: a list of entries, each with a list of alternatives."""
_TEXT = rb'"(?:[^"\\]++|\\.)*+"'
NAME = b'token_ids"'
"""How the names of token ids end: `token_ids`, `prompt_token_ids`."""
_IDS_NAME, _USAGE_NAME = b"token_ids", b'"usag'
_NOT_KNOWN = b"\0" + _IDS_NAME
"""Is in no JSON."""
_BEGINNING = re.compile(rb',\s*"(?:prompt_)?token_ids"\s*:\s*\[')
_IDS = re.compile(rb"\s*:\s*(?:null|\[[^\]]*+\])")
_COMMA = re.compile(rb"\s*,")
_NO_CHOICES = (b'"choices":[]', b'"choices": []')
_USAGE = re.compile(rb'"usage"\s*:\s*\{')


def _nested_value_pattern(depth: int) -> bytes:
    inner = rb"|" + _nested_value_pattern(depth - 1) if depth else b""
    return rb"[\[{](?:[^\[\]{}\"]++|" + _TEXT + inner + rb")*+[\]}]"


_LOGPROBS = re.compile(rb'"logprobs"\s*:\s*' + _nested_value_pattern(DEPTH))


def make_cut(wishes: Wishes, empty_logprobs: bytes) -> Cut:
    """Return what leaves of an answer, or of whole events of a stream, only what was asked for."""
    logprobs, hides_logprobs, hides_ids, hides_usage = (
        b'"logprobs":' + empty_logprobs,
        not wishes.logprobs,
        not wishes.ids,
        not wishes.usage,
    )
    before_ids = _NOT_KNOWN
    """What the server writes before the ids of an event, once it is known."""

    def cut(data: bytes) -> bytes:
        nonlocal before_ids
        if hides_logprobs:
            data = _LOGPROBS.sub(logprobs, data)
        if hides_ids:
            at = data.find(_IDS_NAME)
            begin, end = at - before_ids.find(_IDS_NAME), data.find(b"]", at) + 1
            if at > 0 and begin > 0 and data.startswith(before_ids, begin) and data.find(_IDS_NAME, end) < 0:
                data = data[:begin] + data[end:]
            elif at > 0 and NAME in data:
                before_ids = _find_before_ids(data)
                data = _without_ids(data)
        return _without_usage(data) if hides_usage and _USAGE_NAME in data else data

    return cut


def _find_before_ids(data: bytes) -> bytes:
    """Return what is before the last ids: those of an event follow its text, those of a prompt come once, before it."""
    begin = data.rfind(b",", 0, data.rfind(NAME))
    match = _BEGINNING.match(data, begin) if begin >= 0 else None
    return _NOT_KNOWN if match is None else match[0]


def _without_ids(data: bytes) -> bytes:
    """Return JSON without the fields of token ids.

    A server writes all of them alike: what is before and behind the first name is looked for as fixed text.
    """
    while (at := data.find(NAME)) >= 0:
        begin = data.rfind(b",", 0, at)
        match = _BEGINNING.match(data, begin) if begin >= 0 else None
        if match is None:
            return _without_ids_of_any_form(data)
        head, *rest = data.split(match[0])
        data = b"".join([head, *[part[part.find(b"]") + 1 :] for part in rest]])
    return data


def _without_ids_of_any_form(data: bytes) -> bytes:
    """Do so piece by piece: each field with the comma before it, or else the one behind it."""
    parts, position = [], 0
    at = data.find(NAME)
    while at >= 0:
        value, begin = _IDS.match(data, at + len(NAME)), data.rfind(b'"', 0, at)
        if value is not None and data[begin + 1 : at] in (b"", b"prompt_"):
            end, before = value.end(), begin - 1
            while data[before] in b" \r\n\t":
                before -= 1
            if data[before] == ord(","):
                begin = before
            elif (behind := _COMMA.match(data, end)) is not None:
                end = behind.end()
            parts.append(data[position:begin])
            position = end
        at = data.find(NAME, at + len(NAME))
    return b"".join([*parts, data[position:]])


def _without_usage(data: bytes) -> bytes:
    """Return events without those that hold the token counts at a stream's end and nothing else."""
    end = b"\r\n\r\n" if b"\r\n\r\n" in data else b"\n\n"
    for no_choices in _NO_CHOICES:
        at = data.find(no_choices)
        while at >= 0:
            begin, stop = data.rfind(end, 0, at), data.find(end, at)
            begin = begin + len(end) if begin >= 0 else 0
            stop = stop + len(end) if stop >= 0 else len(data)
            if _USAGE.search(data, begin, stop) is not None:
                data, stop = data[:begin] + data[stop:], begin
            at = data.find(no_choices, stop)
    return data
