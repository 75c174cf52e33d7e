"""The calls of models, observed where they leave: what the server is asked for in addition, and what is hidden again.

In: an HTTP client's requests and responses. Out: an `Exchange` per call, given to its episode.
Read first: endpoints (what is a call), call, answer_tap and hidden_fields (the answer's bytes), then httpx_hook
and openai_client (whose calls), surface and the APIs (chat, completions, responses, without_tokens).
"""
