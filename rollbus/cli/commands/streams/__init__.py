"""Nouns of the log and its stages: topics, worker, runs, replays, further attempts, dead letters, forgetting.

Settings and topics go in; tables, progress and exit codes come out. Read first: `topics`.
"""
