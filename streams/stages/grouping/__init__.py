"""Scores come in, closed groups with advantages go out.

Read `stage` first: which trajectories are compared, and when a group closes. `advantages` is the arithmetic of a
group, `tracker` what is expected of an attempt that comes alone, `habits` how a task's traffic comes, `refusals` what
is left out. `keys` says what a score is grouped by; `state` keeps all of it in `rows`.
"""
