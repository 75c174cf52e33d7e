"""The plugin of the NeMo Agent Toolkit: finetuning on the bus, for `nat finetune` and `rollbus finetune`.

A configuration and a dataset go in; trained weights, metrics and plots come out. Workflows, functions, evaluators,
datasets and registration are the toolkit's own; here are a trajectory builder, a trainer adapter and a trainer whose
data goes over Kafka.

In reading order: components, register (what a configuration may name), configuration, run (from YAML to a run), llms,
recording, evaluation (running examples), bus, bus_kafka, run_view, run_log, transcripts, publishing (the
log), trajectory_builder, art_server, trainer_adapter, trainer, curriculum, troubles, outputs, plot (the three parts);
run_settings, processes, show, finetune (the command).
"""
