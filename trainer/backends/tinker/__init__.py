"""A batch in, new weights out, by a service that speaks the Tinker API: Thinking Machines', SkyRL's, others.

Read `backend` first: how a batch becomes exactly one version over a service that knows no batch. `sequences` makes a
batch into what is sent, and refuses by name what the service cannot do; `service` is the seam, with the shipped fake
in `memory` and the `tinker` package in `sdk`; `figures` makes a step's metrics from the log-probs that come back.
"""
