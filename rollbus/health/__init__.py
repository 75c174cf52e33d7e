"""Is all well? Heartbeats, lags and steps in the log come in; out come one picture of health, alarms and advice.

Read first `picture`, which judges; then `reading`, which asks the log, `watch`, which asks for several askers, `clock`,
which knows the broker's time, and `checks`, which looks at this machine.
"""
