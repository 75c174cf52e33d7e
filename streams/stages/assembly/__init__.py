"""Episode events in, whole trajectories out.

Read `stage` first: it decides when an episode is complete. `state` keeps its events, `histories` joins turns into
token sequences, `trajectory` builds the record, `rewards` adds up what was reported, `echoes` finds repeated
messages.
"""
