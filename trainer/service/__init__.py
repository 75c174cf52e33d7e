"""Our model service: a Qwen2-shaped model behind an OpenAI-compatible endpoint, trained on packed rows.

    model → tokenizer → sampler → endpoint      requests in; tokens, log-probs, policy version out
    update → journal → art_service              packed rows in, the next version of the weights out

Files in reading order: `model`, `tokenizer`, `sampler`, `endpoint`, `update`, `journal`, `art_service`.
"""
