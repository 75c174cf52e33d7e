"""What the demo prints and draws: evaluation before and after, plot, live view, SQL answers.

Read `report` first.
"""
