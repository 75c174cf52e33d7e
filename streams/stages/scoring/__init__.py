"""Trajectories come in, scores go out.

Read `stage` first. `header` makes what a score says besides its value, `sketch` reduces an opening to a few bytes that
similar openings share, and `revision` says what a revised reward changes. `batch_questions` says what is asked about
each record of a batch, `batch_time` what the batch's ticks make the stage forget. `answers` calls reward functions and
checks their values, `written_score` writes them into a score, `group_scoring` scores closed groups, `threads` runs
users' synchronous functions so that one that hangs blocks no other.
"""
