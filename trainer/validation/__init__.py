"""A version in, its measured value out: held-out tasks played at an interval, and the gate before serving.

Read `validating` first, then `validation` (what is due), `playing` (one measurement), `promotion` (the gate).
"""
