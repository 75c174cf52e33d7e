"""Token ids in, log-probs out: the networks of the families that this service runs, their adapters, and their memory.

Read `config` first, whose table lists the families, then `network`, `model`, `weights`, `lora` and `master_weights`.
"""
