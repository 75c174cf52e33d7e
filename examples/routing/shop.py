"""The shop's own system: its teams, and the state of each order. Yours takes its place."""

from zlib import crc32

TEAMS = ("payment", "delivery", "return", "account")
STATES = {
    "card declined": "payment",
    "charged twice": "payment",
    "bank transfer missing": "payment",
    "coupon not accepted": "payment",
    "parcel lost": "delivery",
    "courier found nobody": "delivery",
    "held at customs": "delivery",
    "box arrived empty": "delivery",
    "item broken": "return",
    "wrong size, exchange asked": "return",
    "sent back, refund due": "return",
    "repair under warranty": "return",
    "login blocked": "account",
    "e-mail address changed": "account",
    "user name taken": "account",
    "profile deleted": "account",
}
"""What an order can be in, and the team that then answers; only the verdicts say so to the agent."""


def state_of(order: str) -> str:
    """Return the state of an order; each number of six digits is one."""
    if len(order) != 6 or not (order.isascii() and order.isdigit()):
        return "no such order"
    return tuple(STATES)[crc32(order.encode()) % len(STATES)]
