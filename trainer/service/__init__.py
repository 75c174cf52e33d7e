"""Our model service: the families of `model/config` behind an OpenAI-compatible endpoint, trained on packed rows.

importing     a folder, a GGUF file or a package in; a base model out
model         the networks, their adapters, what memory they need
generate      prompts in; tokens, log-probs and the policy version out
serve         OpenAI requests in; answers out
update        packed rows in; one optimizer step out
checkpoints   versions on disk, the journal of batches, which versions may go
"""
