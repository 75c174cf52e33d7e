"""The calls of an OpenAI client, observed: what the server is asked for in addition, and what is hidden again.

In: a client's calls and their answers. Out: an `Exchange` per call, given to its episode.
Read first: call, then openai_client (the wrapping), surface and the three APIs (chat, completions, responses).
"""
