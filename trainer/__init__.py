"""Training batches in, GRPO updates out: each batch becomes exactly one step, and every step can be answered for.

process_kafka    settings → log, backend and loop, as one process
loop             the batches of a run in order; `taking_over` and `between_steps` are what is done around them
step_opening     a batch → an opened step: `inspection` and `door` say which members are trained, and why others are not
step             an opened step → the transaction that closes it, in the order that makes delivery safe
step_context     what the steps of a run share
ledger, lineage  which step is next, from which weights; how far apart two versions are
alarm            metrics of the last steps → a pause, where training runs away
waiting          for the backend's result, while what comes next is read ahead
validating       the validation set at its interval: `validation` and its settings, `playing` and `evaluation_agents`
accounting       what the backend did → the records that say so
log              what the trainer asks of the log: `log_kafka` (with `reading_kafka`, `connection_kafka`), `log_memory`
reading_ahead    the next batch and its payload, while the backend works
commands_kafka   an operator's pause and resume; `report_kafka`: status and steps as the log has them
backends         what turns a batch into new weights: art-server, art-local, art-released, memory
conversation     a trajectory's chat as messages, for backends that render text themselves
appending        one line to a journal, whole or not at all
policy           promote and roll back versions; `evaluation`, `promotion`: measured on held-out tasks, and the gate
service, grpo    our model service for ART, and the formulas it trains by
"""
