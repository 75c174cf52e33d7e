"""Readers that write rollbus topics elsewhere: every topic comes in; tables, data sets and curves go out.

clickhouse/                        the sink, its migrations and the saved questions
export/                            data sets for other trainers, from the tables
loggers/                           steps and evaluations into W&B, MLflow, Langfuse and OpenPipe, from the topics
dead_letters, dead_letters_kafka   what could not be processed, and how it is written once more
"""
