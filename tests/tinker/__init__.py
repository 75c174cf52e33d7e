"""The Tinker backend at a real service: SkyRL's, on JAX, on a CPU. `make test-tinker` runs these.

`skyrl` makes its environment and starts it; it trains `tests/tiny_qwen3`.
"""
