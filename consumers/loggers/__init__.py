"""Completed steps and evaluations in, their numbers out to the trackers that people already watch.

A logger is a consumer in a process of its own, so a failing logger never stops training. Read `protocol` first, then
`follow_kafka`, which feeds a logger, and one logger per tracker.
"""
