"""Traffic that was recorded elsewhere → our events. Pure: files, sockets and the broker are the business of `imports`.

In: documents of other tools, as JSON has them. Out: the events of one episode per trace.
Read first: trace (what lies between), then episode_events (a trace to its events), formats (the table). A format is one
module: `split` says to which trace a document belongs, `assemble` makes the trace from its parts. `answers`
reads what many formats share, `attributes` what is flattened into names.
"""
