"""The Tinker backend at a real service: SkyRL's, on JAX, on a CPU. `make test-tinker` runs these.

`skyrl` makes its environment and starts it, `base_model` the tiny model that it trains.
"""
