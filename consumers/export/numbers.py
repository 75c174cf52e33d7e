"""A value of a tool call → JSON that the library behind most trainers reads back as the same value.

`datasets` 5.2.0 decodes its Json columns with pandas' parser. That adds the whole part to the digits behind the point
times a power of ten: "0.3" becomes 0.30000000000000004, but "0.30" is 0.3. So a number is spelled with as many zeros as
it needs. In JSONL the library writes each number again with ten digits; only numbers that survive that can be in it.
"""

import json
import math
from typing import Any

_POWERS = tuple(float(f"1e-{digits}") for digits in range(16))
"""What pandas multiplies the digits behind the point with; it reads no more than fifteen of them."""
_REWRITTEN_DIGITS = 10
"""`datasets` writes numbers of JSONL again with so many digits behind the point."""
_PLAIN = (1e-4, 1e15)
"""Sizes that Python and pandas write without an exponent."""


HALF_CHARACTER = "with half a character (a lone surrogate), which no tokenizer takes"
"""A model can write one as an escape of JSON."""


class UnfitRowError(Exception):
    """A row that the reader would load as another one; the text says why, as the end of "left out: 3 …"."""


def exact_json(value: Any, *, rewritten: bool = False) -> str:
    """Return JSON that `datasets` decodes to the value; with `rewritten`, after it has written the numbers itself.

    Raises UnfitRowError if there is none.
    """
    if isinstance(value, dict):
        pairs = (f"{exact_json(name)}: {exact_json(item, rewritten=rewritten)}" for name, item in value.items())
        return f"{{{', '.join(pairs)}}}"
    if isinstance(value, list):
        return f"[{', '.join(exact_json(item, rewritten=rewritten) for item in value)}]"
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, float):
        return _spell(value, rewritten=rewritten)
    if isinstance(value, int) and not -(1 << 63) <= value < 1 << 64:
        raise UnfitRowError("with a whole number of more than 64 bits, which the reader refuses")
    return json.dumps(value)


def is_unicode(text: str) -> bool:
    """Say whether a text is whole characters, so that it has a form in UTF-8."""
    return not any("\ud800" <= character <= "\udfff" for character in text)


def _text(value: str) -> str:
    if not is_unicode(value):
        raise UnfitRowError(HALF_CHARACTER)
    return json.dumps(value, ensure_ascii=False)


def _spell(number: float, *, rewritten: bool) -> str:
    if not math.isfinite(number):  # as 1e999 is read
        raise UnfitRowError("with a number that JSON has no form for")
    text = repr(number)
    if rewritten:
        plain = number == 0 or _PLAIN[0] <= abs(number) < _PLAIN[1]
        spellings = [text] if plain and len(text.partition(".")[2]) <= _REWRITTEN_DIGITS else []
    else:
        zeros = 0 if "e" in text else len(_POWERS) - len(text.partition(".")[2])
        spellings = [text + "0" * count for count in range(max(1, zeros))]
    for spelling in spellings:
        if _read(spelling) == number:
            return spelling
    raise UnfitRowError("with a number that the reader would change")


def _read(text: str) -> float:
    """Return the number that pandas reads."""
    digits, _, exponent = text.removeprefix("-").partition("e")
    whole, _, fraction = digits.partition(".")
    fraction = fraction[: len(_POWERS) - 1]
    value = float(int(whole)) + float(int(fraction or "0")) * _POWERS[len(fraction)]
    if exponent:
        value *= 10.0 ** int(exponent)
    return -value if text.startswith("-") else value
