"""Nouns of capture: the proxy that records programs which cannot be changed.

HTTP requests go in; episode events come out. Read first: `proxy`.
"""
