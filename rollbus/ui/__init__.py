"""`rollbus ui`: a page over ClickHouse, on loopback, without a build step and without the network.

A browser's request → a saved question's answer as JSON. Files in reading order: `page_questions` (question and
values → answer), `token_text` (ids → their text), `sessions` (who is logged in), `door` (who may ask what),
`page_reports` (verdicts and data sets), `actions` (the owner's commands), `app` (routes, what changes as server-sent
events), `static/` (the page; its views in `views/`), `questions/` (SQL that only the page asks).
"""
