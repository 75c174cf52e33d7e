"""What an operator does to the streams: list ACLs, send commands, repair offsets, forget episodes, ask for a run's
status.

Each module is one task. `forget` is pure; the others read and write the log.
"""
