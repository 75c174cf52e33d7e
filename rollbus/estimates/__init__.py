"""A version and a stretch of the log in; what the version would have earned there out, as an `Evaluation`.

Read `estimate` first, then `sample` (episodes from the log) and `scoring` (log-probs from the model endpoint). The
arithmetic is pure: `episode` (one episode), `expected_reward` (the small fitted model), `overlap` (how much the log
says of another version) and `estimators`. `divergence` measures how far a version has moved from another one.
"""
