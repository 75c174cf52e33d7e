"""What a user does next to a value of the turn before, by a table of rules: no model, no state.

| rule         | what the user did                                      | value | confidence |
|--------------|--------------------------------------------------------|-------|------------|
| thanks       | thanked, or said that it works                         | 1     | 0.8        |
| correction   | said no, or that it is wrong or not what was meant     | 0     | 0.8        |
| repetition   | said the same again                                    | 0     | 0.7        |
| retry        | asked for another answer by a button                   | 0     | 0.9        |
| edit         | changed the answer: the share of its words that stayed | 0 … 1 | 0.9        |
| escalation   | asked for a person, by a button or in words            | 0     | 0.9        |
| tool_error   | nothing: the tool call of the turn failed              | 0     | 0.7        |
| silence      | nothing, for as long as `silence_ms`                   | none  | 0.3        |

The option of a rule's name sets its value, as in `repetition: -0.5`; null makes it unclear. `thanks_words`,
`correction_words` and `escalation_words` add words of yours, separated by commas. Words that fit no rule, or thanks and
correction together, are unclear: no reward, and counted.
"""

import re
from collections import Counter

from rollbus.schemas.records.trajectories import Trajectory, TurnReward
from rollbus.streams.rewards.contract import RewardContext, TurnValues, average_turns
from rollbus.streams.rewards.next_turn.exchanges import NextTurn, next_turns

VALUES: dict[str, float | None] = {
    "thanks": 1.0,
    "correction": 0.0,
    "repetition": 0.0,
    "retry": 0.0,
    "escalation": 0.0,
    "tool_error": 0.0,
    "silence": None,
}
CONFIDENCE = {
    "thanks": 0.8,
    "correction": 0.8,
    "repetition": 0.7,
    "retry": 0.9,
    "edit": 0.9,
    "escalation": 0.9,
    "tool_error": 0.7,
    "silence": 0.3,
}
HINTS = frozenset({"correction", "edit", "tool_error"})
"""Rules after which what was said may help to answer better; the words of the others say only how good it was."""
UNCLEAR = "unclear"
WORDS = THANKS_WORDS, CORRECTION_WORDS, ESCALATION_WORDS = "thanks_words", "correction_words", "escalation_words"
"""Options that add words to a rule."""
SAME_WORDS = 0.8
"""Share of the words of two messages that are in both, above which the second repeats the first."""
FEWEST_WORDS = 2
"""Shorter messages, such as "yes", may be the same by chance."""
MOST_CHARACTERS = 4_000
"""Of a message that is read: a user's text decides nothing about how long that takes."""
THANKS = re.compile(
    r"\b(?:thanks?|thank you|thx|cheers|perfect|excellent|that (?:works?|worked|helps|helped|did it)|it works"
    r"|problem solved|exactly|danke|vielen dank|merci|gracias|grazie|obrigad[oa])\b",
    re.IGNORECASE,
)
CORRECTION = re.compile(
    r"^\W*(?:no|nope|nein|non)\b|\b(?:wrong|incorrect|not correct|not right|not what i|i (?:meant|said|asked)|instead"
    r"|that is not|that's not|that isn't|it's not|(?:does|did|do)(?:n't| not) (?:work|help)|not working|not helpful"
    r"|falsch|stimmt nicht|c'est faux|incorrecto)\b",
    re.IGNORECASE,
)
ESCALATION = re.compile(
    r"\b(?:(?:talk|speak|chat|connect me|put me through) (?:to|with) (?:an?|some|your)"
    r"|(?:real|actual) (?:human|person)|human (?:agent|please))\b",
    re.IGNORECASE,
)
_WORD = re.compile(r"\w+")


def next_turn(trajectory: Trajectory, context: RewardContext) -> TurnValues:
    """Return what the rules say of each turn that was answered."""
    earlier = {turn.event_id: turn for turn in context.earlier if turn.event_id}
    return average_turns(
        _turn_reward(answered_turn, context, earlier.get(answered_turn.event_id))
        for answered_turn in next_turns(trajectory)
    )


def _turn_reward(answered_turn: NextTurn, context: RewardContext, earlier: TurnReward | None) -> TurnReward:
    rule, value = speak(answered_turn, context)
    if rule == UNCLEAR and earlier is not None:
        return earlier  # a revision knows the texts of the last turn alone, and the first time had those of all
    return TurnReward(
        turn_event_id=answered_turn.turn_event_id,
        component=context.name,
        value=value,
        confidence=CONFIDENCE.get(rule, 0.0),
        signal=rule,
        event_id=answered_turn.event_id,
        is_hint=rule in HINTS,
    )


def speak(answered_turn: NextTurn, context: RewardContext) -> tuple[str, float | None]:
    """Return the rule that fits, and the value that it gives."""
    rule = _rule_of(answered_turn, context)
    if rule == UNCLEAR:
        return rule, None
    if rule in context.options:
        value = context.options[rule]
        return rule, None if value is None else float(value)
    if rule == "edit":
        return rule, unchanged_share(answered_turn.answer, answered_turn.words)
    return rule, VALUES[rule]


def _rule_of(answered_turn: NextTurn, context: RewardContext) -> str:
    if answered_turn.signal == "edit":
        return "edit" if answered_turn.answer and answered_turn.words else UNCLEAR
    if answered_turn.signal != "reply":
        return answered_turn.signal
    words = answered_turn.words[:MOST_CHARACTERS]
    if _fits(ESCALATION, ESCALATION_WORDS, words, context):
        return "escalation"
    is_thanks = _fits(THANKS, THANKS_WORDS, words, context)
    is_correction = _fits(CORRECTION, CORRECTION_WORDS, words, context)
    if is_thanks != is_correction:
        return "thanks" if is_thanks else "correction"
    if is_thanks:
        return UNCLEAR
    return "repetition" if repeats(answered_turn.question[:MOST_CHARACTERS], words) else UNCLEAR


def _fits(pattern: re.Pattern[str], option: str, words: str, context: RewardContext) -> bool:
    if pattern.search(words):
        return True
    spoken = f" {' '.join(_WORD.findall(words.casefold()))} "
    extra = str(context.options.get(option) or "").split(",")
    return any(f" {' '.join(plain)} " in spoken for phrase in extra if (plain := _WORD.findall(phrase.casefold())))


def repeats(question: str, words: str) -> bool:
    """Say whether a message says again what the user had said before."""
    before, after = _words_of(question), _words_of(words)
    if min(before.total(), after.total()) < FEWEST_WORDS:
        return False
    return (before & after).total() >= SAME_WORDS * (before | after).total()


def unchanged_share(answer: str, edited: str) -> float:
    """Return the share of an answer's words that the user kept, and of the user's that were the answer's."""
    before, after = _words_of(answer[:MOST_CHARACTERS]), _words_of(edited[:MOST_CHARACTERS])
    total = before.total() + after.total()
    return 2 * (before & after).total() / total if total else 1.0


def _words_of(text: str) -> Counter[str]:
    return Counter(_WORD.findall(text.casefold()))
