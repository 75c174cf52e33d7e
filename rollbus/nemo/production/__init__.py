"""The toolkit's workflow in production: its requests onto the log, and the log's episodes into a run.

Read first: `telemetry` (each request is an episode) with `request_labels`, then `eval_scores` (what `nat eval` says of
them) and `log_builder` (a trajectory builder that plays them into a finetuning run).
"""
