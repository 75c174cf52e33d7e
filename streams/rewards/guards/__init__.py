"""What a gamed reward does to the text: a trajectory comes in, a measure goes out. Pure.

Give them weight 0 in `scoring.rewards`, and a limit in the run's `delivery.metrics`. Read `repetition` first.
"""
