"""A plan in; another namespace's topics and a manifest out.

Read `run` first, then `chain` and `lane` (what is decided, fed from the broker), `writer` and `manifest` (what is
written); `promote` makes a shadow's run the live one.
"""
