"""A model whose weights are at a service with the Tinker API: trained there, and served here to agents.

`model` is the backend that `rollbus art-server` runs then; `sampler` gives the endpoint its tokens.
"""
