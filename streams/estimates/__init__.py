"""What would another version have earned on traffic that was recorded? Episodes with two log-probs each come in;
estimates with intervals come out, or the reason why there are none. Pure.

Read `logged` first (one episode), then `expected` (the small fitted model), `overlap` (how much the log says of another
version) and `estimators`. `divergence` measures how far a version has moved from another one.
"""
