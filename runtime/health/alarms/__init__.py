"""What counts as wrong: beats, lags, steps, metrics come in; problems with a remedy, and pauses, come out. Pure.

Every rule is here, whoever acts on it: `rollbus status`, the page and `rollbus alarms` show problems, the trainer
pauses its run for a divergence, and a worker whose part is stalled ends itself.

problem      one thing that is wrong, and how ages are written
limits       when: the settings of `health: alarms:`
processes    beats → processes, and what is wrong with each
lags         consumer groups → which fall behind
runs         steps → runs, and what is wrong with each
archive      an archive job's beats → what is lost, and how far it is behind
divergence   metrics of steps → a reason to pause
stall        positions of a worker's parts → those that do not move
"""
