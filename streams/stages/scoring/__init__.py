"""Trajectories come in, scores go out.

Read `stage` first. `header` makes what a score says besides its value, `sketch` reduces an opening to a few bytes that
similar openings share, and `revision` says what a revised reward changes. `answers` calls reward functions and checks
their values, `group_scoring` scores closed groups, `threads` runs users' synchronous functions so that one that hangs
blocks no other.
"""
