"""Weights in; numbered folders on disk out, and back.

Read `checkpoint` first, then `journal` (which batch made which version), `keeping` and `retention` (which folders
stay).
"""
