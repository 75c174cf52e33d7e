"""What becomes of the episodes of a run: counts come in; a funnel with a forecast, in plain words, comes out.

counting     ClickHouse → the counts (the one reader), by the questions in `questions/`
numbers      what is counted
funnel       counts → stages, each with its number, what is lost there, and the one thing to do
losses       reason of a drop → the stage that it belongs to, in words, and what to do: a new reason gets its line here
notices      what the counts say about tokens, rewards, groups, models and filters, in sentences
forecast     when the next step comes at this rate
verdict      the picture of health and the funnels → one line, and whether all is well
show         a funnel → the terminal
"""
