"""Is one version better than another, looked at after every episode? Episodes' outcomes come in, verdicts go out. Pure.

Read `effect` first (running sums of two arms), then `mixture` (how far chance alone leads them) and `verdict`.
`delays` says when rewards come, `waiting` when an episode's reward has probably come, and `evaluation_checks`
compares evaluations from outside traffic.
"""
