"""One module per noun of the command line, in a room per part of the system that it speaks to.

`root` in the folder above lists the nouns. A module gets the settings and prints for people; the work is done in the
part's own package. Read first: `streams/topics` for a noun with verbs, `consumers/sink` for one that runs.
"""
