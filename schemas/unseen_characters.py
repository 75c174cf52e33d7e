"""Text of strangers → text that a person can look at: what a terminal would obey, or no reader can see, is named.

Labels, tasks, names of tools and errors come from agents and their users. A control sequence among them could rename
the terminal, clear it or write its clipboard; a bidirectional override shows another order than is there. The page does
the same in `ui/static/text.js`. Pure.
"""

import unicodedata

ALLOWED_CHARACTERS = frozenset("\t\n\u200c\u200d")
"""Not the joiners: emoji and Persian fall apart without them."""

FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "\uff1d", "\uff0b", "\uff0d", "\uff20")
"""What may begin a formula; the last four are the wide forms of the first, which East Asian spreadsheets take, too."""


def escape_unseen(text: str) -> str:
    """Return the text with controls, formats, private characters and halves of pairs written as `\\u001b`.

    Within a JSON document that leaves its values as they were.
    """
    return text if text.isprintable() else "".join(map(_escape, text))


def escape_lines(text: str) -> str:
    """Do the same for one line of a log: what follows a line break is indented, so that it does not pass for a line."""
    return escape_unseen(text).replace("\n", "\n    ")


def escape_formula(text: str) -> str:
    """Return a field of CSV that a spreadsheet does not take for a formula: with an apostrophe before it."""
    return f"'{text}" if text.startswith(FORMULA) else text


def _escape(character: str) -> str:
    if character.isprintable() or character in ALLOWED_CHARACTERS or unicodedata.category(character) == "Zs":
        return character
    units = character.encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[start : start + 4]}" for start in range(0, len(units), 4))
