"""`python -m rollbus.streams.rewards.next_turn QUESTION ANSWER REPLY`: the rule that a reply fits, and its value."""

import sys

from rollbus.streams.rewards.contract import RewardContext
from rollbus.streams.rewards.next_turn.exchanges import NextTurn
from rollbus.streams.rewards.next_turn.rules import CONFIDENCE, speak

if __name__ == "__main__":
    if len(sys.argv) != 4:
        print("usage: python -m rollbus.streams.rewards.next_turn QUESTION ANSWER REPLY", file=sys.stderr)
        sys.exit(2)
    question, answer, words = sys.argv[1:]
    rule, value = speak(NextTurn("", "reply", question, answer, words), RewardContext("next_turn"))
    print(f"{rule}: no reward" if value is None else f"{rule}: {value:g}, confidence {CONFIDENCE[rule]:g}")
