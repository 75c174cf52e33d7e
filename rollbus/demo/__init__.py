"""The demo: agents learn tic-tac-toe from their own traffic, over the whole stack.

game           rules, opponents, prompts, and agents that play through the recorded OpenAI client
base_model     settings become a model that knows which cells are free and nothing else; `warm_start` trains it
show           evaluation, plot, live view, answers in SQL
configuration, processes    the settings file and the commands of the demo's parts
run            starts the parts, waits, evaluates, reports, stops everything
"""

__all__: list[str] = []
