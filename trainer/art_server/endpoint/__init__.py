"""OpenAI requests in, answers with tokens and log-probs out.

Read `endpoint` first (HTTP), then `openai_api` (what a request may ask). The tokens come from `sampler`.
`hints` puts a user's words into a recorded prompt.
"""
