"""Runs into the trackers that people already watch: completed steps and evaluations come in, their points go out.

A logger is a consumer in a process of its own, so one that fails never stops training. `protocol` says what one does;
`wandb_logger`, `mlflow_logger`, `langfuse_logger` and `openpipe_logger` do it, `memory` does it for tests, and
`follow_kafka` feeds them.
"""
