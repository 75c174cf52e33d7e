"""The log in a folder or in object storage: in it, checked, without forgotten episodes, and back in Kafka.

What comes in: committed records of the namespace's topics. What goes out: the same bytes, keys, headers, timestamps and
offsets, in Kafka under another namespace or as the log that ClickHouse's tables are rebuilt from.

In reading order: `manifest` (what an archive says that it holds), `files` (records as Parquet), `storage` (a folder or
object storage), `archive` (the chain of manifests at a place), `kafka` (the log into it, and back), `forget`, `log`.
"""
