"""The records on the wire: frozen dataclasses, one module per family.

In: field values. Out: validated records with deterministic ids. Read `events` first, then `trajectories`, `groups`,
`steps`; `tokens` packs token ids and log-probs.
"""
