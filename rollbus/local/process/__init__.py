"""Programs that `rollbus up` starts: ports, health, output, and their end with ours.

Read `service` first, then `processes` and `supervisor`; `state` is what a stack remembers on disk.
"""
