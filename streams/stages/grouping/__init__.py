"""Scores come in, closed groups with advantages go out.

Read `stage` first: which trajectories are compared, and when a group closes. `state` keeps the open groups,
`advantages` is the arithmetic.
"""
