"""The second door: files and OTLP of traffic that was recorded elsewhere, to Kafka. `formats` decides.

files ─documents─▶ parts ─store─▶ whole traces ─sending─▶ episode-events      import_files (one run)
OTLP ──http, grpc_server, otlp_wire─▶ parts ─store─▶ …                               collector (until it is stopped)

The store is a SQLite file: what is in it survives a kill, however much it is, and a trace is read back whole. It is
marked as sent only when the broker has it: a kill between the two sends it again, with the same ids.
Read first: collector and import_files, then store and sending.
"""
