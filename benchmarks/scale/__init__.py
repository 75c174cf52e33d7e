"""The stages at rates that no machine here reaches: real stage code; simulated workers, brokers, disks, networks.

Costs and a cluster come in; latency, recovery and what the cluster needs go out. Read `cluster` first (what is
simulated, and which part of it), then `workers` (what a transaction costs), `brokers`, `fitting` and `calibrate` (costs
from real runs here) and `run`, which prints all of it. All but `calibrate` and `run` are pure: time is simulated,
chance comes from a seed.
"""
