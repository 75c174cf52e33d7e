"""Token ids in, log-probs out: the Qwen2-shaped network, its LoRA adapters and what memory it needs.

Read `model` first, then `lora` and `master_weights`.
"""
