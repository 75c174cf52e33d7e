"""Our model service: a Qwen2-shaped model behind an OpenAI-compatible endpoint, trained on packed rows.

model, tokenizer, checkpoint               a directory in Hugging Face layout, and the network it holds
cache → sampling → sampler                 prompts in; tokens, log-probs, policy version out
openai_api → endpoint                      the sampler over HTTP
rows → update                              packed rows in, one optimizer step out
journal                                    what became of each batch, on disk
art_service                                all of it as ART's LocalBackend calls it
"""
