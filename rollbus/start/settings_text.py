"""A settings file's text and one value → the text with that value, and every other comment and line as it was.

YAML libraries write the whole file again and lose the comments of its author. So the text is changed at the place that
the parser names, and read again: where the result is not exactly the change that was meant, nothing is written.
"""

from typing import Any

import yaml

from rollbus.schemas.errors import ConfigurationError
from rollbus.settings_file import Place, format_place, parse_yaml

ONE_LINE_WIDTH = 2**31 - 1
"""The greatest that both of PyYAML's emitters take; libyaml's has no infinity."""


def set_value(text: str, place: Place, value: Any) -> str:
    """Return the text with a value at a place, given by keys and list positions; sections that are missing are made.

    Raises ConfigurationError for a place that the text cannot have.
    """
    expected_values = _with_value(parse_yaml(text), place, value)
    changed_text = _change(text, place, value)
    try:
        is_meant = parse_yaml(changed_text) == expected_values
    except (yaml.YAMLError, ValueError):
        is_meant = False
    if not is_meant:
        raise ConfigurationError(
            f"the file cannot be changed at {format_place(place)}; set it there yourself: {_to_flow_style(value)}"
        )
    return changed_text


def _with_value(document: Any, place: Place, value: Any) -> Any:
    """Return the parsed document with the value, to compare the changed text with."""
    if not place:
        return value
    key, below = place[0], place[1:]
    if isinstance(key, int):
        items = list(document or ())
        if key > len(items):
            raise ConfigurationError(f"the list has {len(items)} entries, so there is no place {key}")
        items[key : key + 1] = [_with_value(items[key] if key < len(items) else None, below, value)]
        return items
    if document is not None and not isinstance(document, dict):
        raise ConfigurationError(f"{key} cannot be set below {document!r}")
    return {**(document or {}), key: _with_value((document or {}).get(key), below, value)}


def _change(text: str, place: Place, value: Any) -> str:
    node = yaml.compose(text, Loader=yaml.SafeLoader)
    if node is None or (isinstance(node, yaml.MappingNode) and not node.value):
        remainder = text if node is None else text[: node.start_mark.index] + text[node.end_mark.index :]
        return _end_line(remainder) + yaml.safe_dump(_nest(place, value), sort_keys=False, default_flow_style=None)
    key_column = -1
    for depth, key in enumerate(place):
        below = _child(node, key)
        if below is None:
            return _insert(text, node, key, _nest(place[depth + 1 :], value))
        if _is_empty(below):
            return _replace(text, below, _nest(place[depth + 1 :], value))
        key_column, node = node.start_mark.column, below
    # A list may begin in the column of its key; nothing else may.
    return _replace(text, node, value, lead="  " if node.start_mark.column == key_column else "")


def _child(node: yaml.Node, key: str | int) -> yaml.Node | None:
    if isinstance(node, yaml.MappingNode):
        return next((below for name, below in node.value if name.value == key), None)
    if isinstance(node, yaml.SequenceNode) and isinstance(key, int) and key < len(node.value):
        below: yaml.Node = node.value[key]
        return below
    return None


def _insert(text: str, node: yaml.Node, key: str | int, value: Any) -> str:
    """Write a new key as the first of its section, or a new entry as the last of its list."""
    if isinstance(node, yaml.SequenceNode):
        end = node.end_mark.index - 1 if node.flow_style else node.value[-1].end_mark.index
        lead = ", " if node.flow_style else "\n" + " " * node.start_mark.column + "- "
        return text[:end].rstrip() + lead + _to_flow_style(value) + _text_after(text, end)
    begin = node.start_mark.index
    if isinstance(node, yaml.MappingNode) and node.flow_style:
        return f"{text[: begin + 1]}{key}: {_to_flow_style(value)}{', ' if node.value else ''}{text[begin + 1 :]}"
    return f"{text[:begin]}{key}: {_to_flow_style(value)}\n{' ' * node.start_mark.column}{text[begin:]}"


def _text_after(text: str, end: int) -> str:
    """Return the text from a place on, on a new line if something else than the end of the list stands there."""
    return text[end:] if text[end : end + 1] in ("", "\n", "]", " ") else "\n" + text[end:]


def _replace(text: str, node: yaml.Node, value: Any, *, lead: str = "") -> str:
    """Write a value in place of another, which in block style ends before the next line that holds something."""
    begin, end = node.start_mark.index, node.end_mark.index
    tail = text[begin:end]
    whitespace = tail[len(tail.rstrip()) :]
    lead = " " if begin and text[begin - 1] == ":" else lead
    return text[:begin] + lead + _to_flow_style(value) + whitespace + text[end:]


def _is_empty(node: yaml.Node) -> bool:
    return isinstance(node, yaml.ScalarNode) and node.tag == "tag:yaml.org,2002:null"


def _nest(place: Place, value: Any) -> Any:
    """Return the sections and lists of a place, with the value in the innermost."""
    for key in reversed(place):
        value = [value] if isinstance(key, int) else {key: value}
    return value


def _to_flow_style(value: Any) -> str:
    """Return a value on one line, quoted as it must be within brackets."""
    text = yaml.safe_dump([value], default_flow_style=True, sort_keys=False, width=ONE_LINE_WIDTH, allow_unicode=True)
    return text.strip()[1:-1]


def _end_line(text: str) -> str:
    return text + "\n" if text.strip() and not text.endswith("\n") else text
