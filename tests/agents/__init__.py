"""Foreign agents, written after their frameworks' documentation, against a server that knows what it answered.

Read `model_server` first: it answers, remembers, and by a seed fails, stalls and cuts. `compare` holds what was
recorded against it, turn by turn. Each test module holds the agents of one framework; none of them mentions rollbus.
"""
