"""One call of a model to the turn that is recorded. Pure: no clock, no thread, no episode.

In: an `Exchange`, a request with its answer. Out: `Draft`s, one per choice, redacted and judged.
Read first: turn_record, then answer, verdict (trainable or not), redaction, prompt_log (what earlier turns carried).
`foreign_messages` and `sampled_message` bring what other APIs and tools say into the form of chat completions.
"""
