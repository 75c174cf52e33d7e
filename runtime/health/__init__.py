"""A process → what others see of it: a heartbeat in the log every few seconds, and `/metrics` for Prometheus.

In comes what the process reports of itself; out go records and one page of text. Read first `heart`, then `metrics`.
"""
