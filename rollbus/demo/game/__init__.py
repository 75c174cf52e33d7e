"""Tic-tac-toe: rules, opponents, prompts and the agents that play it through the model endpoint.

Read `game` first, then `agents`.
"""
