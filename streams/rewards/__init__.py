"""Reward functions by name: a trajectory enters, a number leaves, or None where there is nothing to say yet.

contract        what a reward function is
registry        the table of names, and the users' own by entry point
options         what each of them can be told, checked before anything is scored
feedback        rewards that were reported
answer_checks   what the answer itself shows: exact_match, json_valid, length, regex
guards          what a gamed reward does to the text
judge           what another model says
next_turn       what the user did next
judge_relative  how another model ranks the members of a closed group
"""
