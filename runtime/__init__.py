"""The plumbing of a process: what every part needs of the machine, the broker and HTTP. It decides nothing.

kafka        the only room that reaches the broker: clients, reading, offsets, lag
http         one guard and one server for every port of ours
health       the heartbeat and the metrics of a process
credentials  the secrets of the local stack
tasks        background tasks and threads, each with an owner that hears of its end
machine      cores, memory, and the folder for what was fetched once for all projects
cancelling, decompression, lazy   cancellation, bounded decompression, names that are imported at their first use

It imports `schemas`; every other folder may import it.
"""
