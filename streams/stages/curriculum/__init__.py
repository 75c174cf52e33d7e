"""Groups in, training batches out.

Read `stage` first: a window ranks its groups and admits some. `modes` lists the ways to choose (`harness`, `pools`,
`advantage_range`, `surprise`), `batching` cuts steps and drops what is too old, `state` keeps window and batches.
"""
