"""Work on tables that exist: rebuild them from the log, forget episodes, delete the namespaces of replays.

Each module is one task; read `rebuild` first.
"""
