"""The demo: agents learn tic-tac-toe from their own traffic, over the whole stack.

game, opponents, reference     the rules, who plays against the model, and what perfect knowledge would score
prompt                         board → chat messages, reply → move or illegal, result → reward
warm_start                     settings → a base model that knows the rules and nothing else, cached
agents                         games through the recorded OpenAI client: the "production traffic"
statistics, evaluation         held-out games at one policy version → rates with intervals
status, view                   Kafka, ClickHouse and art-server → one `DemoStatus` → the live terminal view
plot, report                   results → PNG, and five answers in SQL
run                            the director: starts the parts, waits, evaluates, reports, stops everything
"""

__all__: list[str] = []
