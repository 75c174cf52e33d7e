"""Our model service: a Qwen2-shaped model that samples for an OpenAI-compatible endpoint and learns from packed rows.

    model → tokenizer → sampler → endpoint      requests in, tokens with their log-probs and policy version out
    update → journal → art_service              ART's packed rows in, the next version of the weights out

Files in reading order: `model`, `tokenizer`, `sampler`, `endpoint`, `update`, `journal`, `art_service`.
"""
