"""Nouns of one machine: `up`, `status`, `down`, and the demo.

Settings go in; running services and a printed result come out. Read first: `stack`.
"""
