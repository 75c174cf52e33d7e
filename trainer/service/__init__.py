"""Our model service: a Qwen2-shaped model behind an OpenAI-compatible endpoint, trained on packed rows.

model         the network, its adapters, what memory it needs
serve         requests in; tokens, log-probs and the policy version out
update        packed rows in; one optimizer step out
checkpoints   versions on disk, the journal of batches, which versions may go
"""
