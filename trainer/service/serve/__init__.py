"""OpenAI requests in, sampled tokens with log-probs out.

Read `endpoint` first (HTTP), then `sampler` (continuous batching) and `openai_api` (what a request may ask).
"""
