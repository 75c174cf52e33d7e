"""Trajectories come in, scores go out.

Read `stage` first. `answers` calls reward functions and checks their values, `group_scoring` scores closed groups,
`threads` runs users' synchronous functions so that one that hangs blocks no other.
"""
