"""A batch in, new weights out, by OpenPipe ART: in this process or on a server of its own.

Read `server` first (`trainer/backends/art_client` is the other end of its protocol), then `local` (ART itself),
`session` and `packing` (what ART is given).
"""
