"""The plugin of the NeMo Agent Toolkit: finetuning on the bus, for `nat finetune` and `rollbus finetune`.

A configuration and a dataset go in; trained weights, metrics and plots come out. Workflows, functions, evaluators,
datasets and registration are the toolkit's own; here are a trajectory builder, a trainer adapter and a trainer whose
data goes over Kafka.

Read first: `components` and `register` (what a configuration may name), then the three parts `trajectory_builder`,
`trainer_adapter`, `trainer`, and a user's own in `own_parts`; `finetune` is the command. `runs` keeps runs as objects,
`bus` is their log, and `production` is a workflow that runs anyway: its requests are recorded, scored by `nat eval`,
and trained from the log.
"""
