"""`rollbus replay`: options in, a plan shown, a replay run and reported.

Read `options` first; the command itself is in `commands`.
"""
