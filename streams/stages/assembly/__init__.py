"""Episode events in, whole trajectories out.

Read `stage` first: it decides when an episode is complete. `state` keeps its events in `rows`, `histories` joins turns
into token sequences, `trajectory` builds the record and leaves out echoes, `rewards` adds up what was reported,
`families` passes a root's rewards down to its sub-agents' episodes.
"""
