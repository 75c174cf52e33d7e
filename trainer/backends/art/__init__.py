"""A batch in, new weights out, by OpenPipe ART: in this process or on a server of its own.

Read `client` and `server` first (the two ends of one protocol), then `local` (ART itself), `session` and `packing`
(what ART is given).
"""
