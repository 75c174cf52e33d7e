"""Training batches in, GRPO updates out: each batch becomes exactly one step, and every step can be explained.

Rooms in reading order:

    process      settings become log, backend and loop, as one process
    loop         the batches of a run in order; one step from its opening to the transaction that closes it
    ledger       which step is next, from which weights; what the trainer asks of the log
    grpo         the formulas
    backends     what turns a batch into new weights: art-server, art-local, tinker, art-serverless, memory
    art_server   the process that holds the model: control, learner, sampler, endpoint, checkpoints, base models
    validation   held-out tasks at an interval, and the gate before a version is served
    operate      what an operator asks: pause, status, promote, roll back
"""
