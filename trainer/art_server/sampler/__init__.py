"""The sampler: prompts and weights of a version go in, tokens with their log-probs come out.

One thread reads and decodes for all requests together. Read first: `requests`, then `sampler`.
"""
