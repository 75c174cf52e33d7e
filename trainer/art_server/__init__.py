"""The process that holds the model, with an OpenAI-compatible endpoint; OpenPipe ART's clients can drive it.

control       batches in, new weights out, each exactly once: the server's routes, and those of ART's clients
learner       sequences in; one optimizer step out
arts_own      instead of learner and sampler: ART's own service, Unsloth and vLLM on a GPU
sampler       prompts in; tokens, log-probs and the policy version out
endpoint      OpenAI requests in; answers out
model         the networks of the families of `model/config`, their adapters, what memory they need
hosted        instead of learner and sampler: a model at a service with the Tinker API
base_models   a folder, a GGUF file or a package in; a base model out
checkpoints   versions on disk, the journal of batches, which versions may go
"""
