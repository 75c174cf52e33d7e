"""The demo: agents learn tic-tac-toe from their own traffic, over the whole stack.

game, opponents, reference     the rules, who plays against the model, and what perfect knowledge would score
prompt                         board → chat messages, reply → move or illegal, result → reward
base_model, warm_start         settings → a model that knows which cells are free and nothing else, cached
playing, agents                games through the recorded OpenAI client: the "production traffic"
statistics, evaluation         held-out games at one policy version, by the trainer's player → rates with intervals
sql, lag_kafka, status, view   ClickHouse and Kafka → one `DemoStatus` → the live terminal view
plot, questions, report        results → PNG, numbers, and five answers in SQL
configuration, processes       the demo's choices → the settings file and the commands of its parts
run                            the director: starts the parts, waits, evaluates, reports, stops everything
"""

__all__: list[str] = []
