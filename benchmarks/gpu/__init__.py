"""`make gpu-check`: what a machine with a GPU can do, by the commands that its owner will run, as one report.

engines       the ways to serve and train, each with what it needs
server        `rollbus art-server run` with the settings of an engine, in a process that can be killed
probes        the probes of one server: speed, parity, step, new weights, rollback, kill and resume
vllm_sampler  a vLLM of one's own that serves a checkpoint
report        findings to a page
check         the command
"""

__all__: list[str] = []
