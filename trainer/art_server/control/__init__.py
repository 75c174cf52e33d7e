"""A batch in, new weights out: in this process or on a server of its own, which ART's clients can drive too.

Read `server` first (`trainer/backends/art_client` is the other end of its protocol), then `local` (the journal around a
batch) and `session` (the service of the model, and what describes an update). `old_routes` answers ART's clients:
`old_bodies` reads their batches and `old_config` their settings.
"""
