"""What every stage is made of: a record comes in, outputs and changed rows of one partition come out. All pure.

Read `stage` first (what a step receives and returns), then `table` (rows, and which of them a batch touched).
`configured_stage` is the part of a step that all stages share; `clock` and `deadlines` are stream time.
"""
