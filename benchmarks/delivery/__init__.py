"""How often a canary is judged wrongly, and after how many episodes rightly: many runs at once, seeded.

Read `simulation` first; `run` prints the table of docs/delivery-statistics.md and draws its plot. `worlds` are recorded
episodes whose answer is known, `coverage` holds estimates to them, and `routing` is the time of a choice.
"""
