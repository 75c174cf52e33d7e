"""The demo: an agent learns its job from its own traffic, over the whole stack.

job            what a demo trains: model, traffic, settings, evaluation, and the words for them
game, routing  the two jobs: tic-tac-toe with a tiny model, tickets to teams with a real one
traffic        runs what brings the traffic, and delivers what it recorded
base_model     settings become a model that plays tic-tac-toe as a beginner; `warm_start` trains it
show           evaluation, plot, live view, answers in SQL
configuration, processes    the settings file and the commands of the demo's parts
run            starts the parts, waits, evaluates, reports, stops everything
"""

__all__: list[str] = []
