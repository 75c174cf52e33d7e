"""A vLLM of one's own that samples, while the server trains: its log-probs must be those of the learner too."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.gpu.server import MODEL
from rollbus.local.process.ports import find_free_port
from rollbus.local.process.service import Service, ServiceProcess, answers_http
from rollbus.local.process.tether import tethered
from rollbus.stack_settings import HOST

START_TIMEOUT_S = 900.0
"""A first start compiles kernels."""


def lacks_vllm(device: str) -> str | None:
    """Return why no vLLM can serve here."""
    if not device.startswith("cuda"):
        return f"it needs a GPU, and this check runs on {device}"
    return (
        None
        if shutil.which("vllm")
        else "the command vllm is missing; install the extra vllm in an environment of its own"
    )


@contextmanager
def serve_with_vllm(base_model: Path, folder: Path, max_tokens: int) -> Iterator[str]:
    """Serve the base model as version 0, and give the URL; half of the GPU stays for the learner."""
    port = find_free_port()
    command = [
        *("vllm", "serve", str(base_model), "--host", HOST, "--port", str(port), "--served-model-name", f"{MODEL}@0"),
        *("--logprobs-mode", "raw_logprobs", "--max-model-len", str(max_tokens), "--gpu-memory-utilization", "0.4"),
    ]
    service = Service("vllm", lambda: command, lambda: answers_http(port, "/health"), start_timeout_s=START_TIMEOUT_S)
    process = ServiceProcess(service, log_path=folder / "vllm.log", prefix=tethered())
    try:
        process.start()
        process.wait_until_healthy()
        yield f"http://{HOST}:{port}/v1"
    finally:
        process.stop()
