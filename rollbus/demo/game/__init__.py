"""Tic-tac-toe: rules and opponent, prompts and the agents that play it through the model endpoint.

Read `game` first, then `agents`.
"""
