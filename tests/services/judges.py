"""Judges behind an endpoint, as scripts: they ask no model."""

import json
import re
from hashlib import blake2b
from typing import Any

from tests.web import QuietHandler

ADVICE = "Be exact; they said:"
"""Begins every hint."""
DESK_TEAMS = frozenset({"payment", "delivery", "return", "account"})
REFUSAL = re.compile(r"\bno(?:pe|t)?\b|\bwrong\b")
KIND = re.compile(r"\bth(?:anks?|x)\b|\bgreat\b|\bperfect\b|\bcheers\b")


class RepeatingJudge(QuietHandler):
    """Calls every answer bad unless its user says thanks, and repeats in its hint what the user said, and its code."""

    def do_POST(self) -> None:
        code, texts = read_question(self.read_json())
        words = texts["next"]
        lines = (
            [f"{code} good 0.9"] if words == "thanks" else [f"{code} hint {ADVICE} {words} {code}", f"{code} bad 0.9"]
        )
        self.answer(chat_completion("\n".join(lines)))


class DeskJudge(QuietHandler):
    """Reads what customers of a help desk say as a model might.

    A refusal, or another team than the answer's, is bad; kind words are good; all else is unclear.
    """

    protocol_version = "HTTP/1.1"
    mistaken = 0.0
    """Share of the clear verdicts that are the wrong ones."""

    def do_POST(self) -> None:
        code, texts = read_question(self.read_json())
        words, answer = texts["next"].casefold(), texts["answer"].casefold()
        named_teams = DESK_TEAMS & set(re.findall(r"\w+", words))
        is_bad = bool(REFUSAL.search(words)) or bool(named_teams - {answer.strip()})
        is_good = bool(KIND.search(words))
        verdict = "unclear" if is_bad == is_good else "good" if is_good else "bad"
        if verdict != "unclear" and blake2b(code.encode(), digest_size=1).digest()[0] < 256 * self.mistaken:
            verdict = "bad" if verdict == "good" else "good"
        self.answer(chat_completion(f"The customer wrote {words!r} after {answer!r}.\n{code} {verdict} 0.8"))


class ErringDeskJudge(DeskJudge):
    """Reads one of twenty wrongly."""

    mistaken = 0.05


def read_question(request: Any) -> tuple[str, dict[str, str]]:
    """Return the code that a verdict must carry, and the three texts that are judged."""
    system, data = request["messages"]
    return system["content"].rpartition("For example: ")[2].split()[0], json.loads(data["content"])


def chat_completion(text: str) -> dict[str, Any]:
    """Return an answer in OpenAI's form."""
    return {"choices": [{"message": {"role": "assistant", "content": text}}]}
