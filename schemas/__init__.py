"""The vocabulary. All other folders import it; it imports none of them.

records      the records on the wire: events, trajectories, groups, steps, control records; read it first
ids, topics, errors       deterministic ids, the topic of each record, the tree of errors
namespaces   the prefix of topics, groups and transactional ids
codec        records to bytes and back, by the schemas and the encoders in `avro`
read_only    mappings that a user's function reads and cannot change
soundness    the rules that every record must keep before a stage may build on it
"""
