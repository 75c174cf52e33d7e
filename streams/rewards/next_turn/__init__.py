"""What a user does next, as a reward of the turn before: a trajectory comes in, values of its turns go out. Pure.

exchanges  the turns of a trajectory that somebody answered, and what they did
rules      a table of rules over their words
judge      what another model makes of them
"""
