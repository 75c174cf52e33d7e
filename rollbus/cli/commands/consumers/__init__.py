"""Nouns of what is stored: sink, SQL, page, exports and trackers.

Topics go in; rows, answers, files and pictures come out. Read first: `sink`.
"""
