"""A judge behind an endpoint, as a script: it asks no model, and is careless with a user's words."""

import json

from tests.web import QuietHandler

ADVICE = "Be exact; they said:"
"""Begins every hint."""


class RepeatingJudge(QuietHandler):
    """Calls every answer bad unless its user says thanks, and repeats in its hint what the user said, and its code."""

    def do_POST(self) -> None:
        system, data = self.read_json()["messages"]
        code = system["content"].rpartition("For example: ")[2].split()[0]
        words = json.loads(data["content"])["next"]
        lines = (
            [f"{code} good 0.9"] if words == "thanks" else [f"{code} hint {ADVICE} {words} {code}", f"{code} bad 0.9"]
        )
        self.answer({"choices": [{"message": {"role": "assistant", "content": "\n".join(lines)}}]})
