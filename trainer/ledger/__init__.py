"""The run's log in; out come the next step, its base version, and how far apart versions are.

Read `ledger` first, then `lineage`. `log` is the seam that the trainer writes through (`log_kafka`);
`alarm` pauses a run that diverges.
"""
