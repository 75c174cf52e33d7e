"""What turns a batch into new weights. `protocol` is the seam; `wire` carries it over HTTP.

`memory` is the shipped fake: its weights are a hash of what was trained. `art_client` reaches OpenPipe ART on a server
of its own. `model_settings` describes a model; `admission` refuses what cannot be trained, `sequences` joins turns to
what trains, and `distillation` makes advantages of hints; `jobs` keeps account of the batches of a backend in this
process, `durable` of what outlives it. `tinker` trains at a service with the Tinker API, `serverless` at W&B's;
`art_terms` has a batch as ART takes it.
"""
