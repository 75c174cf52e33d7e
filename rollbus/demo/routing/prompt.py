"""A ticket → the messages that the model is asked, and its answer → a team."""

from hashlib import blake2b

from rollbus.demo.routing.tickets import TEAMS

TASK = "routing"
MAX_ANSWER_TOKENS = 1
"""A team's name is one token; a longer answer is cut."""
SYSTEM = f"You sort support tickets. Answer with one word: {', '.join(TEAMS[:-1])} or {TEAMS[-1]}."
EXAMPLES = (
    ("the invoice for my sofa is wrong", "payment"),
    ("my parcel has not come", "delivery"),
    ("the shoes do not fit, I send them back", "return"),
    ("I forgot my password", "account"),
)


def messages(text: str) -> list[dict[str, str]]:
    """Return the chat. The ticket decides which example comes last, because a small model repeats the last answer."""
    first = blake2b(text.encode(), digest_size=1).digest()[0] % len(EXAMPLES)
    chat = [{"role": "system", "content": SYSTEM}]
    for question, team in (*EXAMPLES[first:], *EXAMPLES[:first]):
        chat += [{"role": "user", "content": question}, {"role": "assistant", "content": team}]
    return [*chat, {"role": "user", "content": text}]


def read_team(answer: str | None) -> str | None:
    """Return the team that an answer names; None for any other text."""
    return answer if answer in TEAMS else None
