"""What a real vLLM samples, on a CPU, is what is trained. `make test-vllm` runs these.

`server` makes vLLM's environment and starts it, once for all tests; `recording` lets an agent ask it through the
recorder, and cuts what was recorded into what a backend trains.
"""
