"""A finetuning run on the log: what it publishes, and what the stages make of it.

Episodes, windows and a user's own trajectories go in; trajectories, batches and steps come out. Only
`publish_trajectories` and `transcripts` know the toolkit. Read first: `protocol`, then `run_log`.
"""
