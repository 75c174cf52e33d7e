"""The process that holds the model: OpenPipe ART around our model service, with an OpenAI-compatible endpoint.

control       batches in, new weights out, each exactly once: the server's routes, and ART's backend
learner       packed rows in; one optimizer step out
sampler       prompts in; tokens, log-probs and the policy version out
endpoint      OpenAI requests in; answers out
model         the networks of the families of `model/config`, their adapters, what memory they need
hosted        instead of learner and sampler: a model at a service with the Tinker API
base_models   a folder, a GGUF file or a package in; a base model out
checkpoints   versions on disk, the journal of batches, which versions may go
"""
