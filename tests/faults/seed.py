"""The seed of a run: it decides where the fault tests kill, and which histories the simulation lives through.

Each run draws a new one, unless the environment names the one to repeat. It is in the environment before worker
processes of pytest start, so all of them have the same.
"""

import os
import secrets

VARIABLE = "ROLLBUS_FAULTS_SEED"
SEED = int(os.environ.setdefault(VARIABLE, str(secrets.randbits(32))))
REPEAT = f"{VARIABLE}={SEED} repeats what this run draws"
