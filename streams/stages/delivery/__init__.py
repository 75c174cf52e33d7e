"""Episodes of two versions, an operator's words and time come in; who serves comes out, with the numbers behind it.

Read `stage` first: what moves a version on or back. `observing` brings the scores of all partitions into one order,
`waiting` says how long an episode waits for its rewards, `metric_verdicts` adds up what a canary's episodes were worth,
`evidence` judges it, `checks` compares evaluations, `state` is what is remembered.
"""
