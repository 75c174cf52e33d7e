"""Install the newest release of each framework in place of the locked one, run its program, and print the table's rows.

python -m tests.newest.run [framework …]

Ends with 1 if one is not recorded as it is with the lock's version.
"""

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.newest.frameworks import FRAMEWORKS, ROOT

ENVIRONMENTS = ROOT / ".venv-newest"
OURS = ("aiokafka[zstd]>=0.14,<0.15", "fastavro>=1.13,<2", "pydantic>=2.12,<3", "httpx>=0.28")
"""Of the recorder, and of the scripted server."""
LIMIT_S = 300


def uv(*arguments: str) -> None:
    """Run uv; raises with what it says where it fails."""
    command = [str(Path(sys.executable).parent / "uv"), *arguments]
    environment = {**os.environ, "VIRTUAL_ENV": ""}
    completed = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if completed.returncode:
        raise RuntimeError(completed.stderr.strip()[-500:])


def install(name: str) -> Path:
    """Bring a framework's environment to the newest releases; return its Python."""
    python = ENVIRONMENTS / name / "bin" / "python"
    if not python.exists():
        uv("venv", "-q", "--python", sys.executable, str(ENVIRONMENTS / name))
    uv("pip", "install", "-q", "--upgrade", "--python", str(python), *OURS, *FRAMEWORKS[name].distributions)
    uv("pip", "install", "-q", "--python", str(python), "--no-deps", "-e", str(ROOT))
    return python


def try_framework(name: str) -> tuple[str, list[str]]:
    """Return the version that was tried, and what is wrong with its record."""
    try:
        command = [str(install(name)), "-W", "ignore", "-m", "tests.newest.try_program", name]
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "OPENAI_AGENTS_DISABLE_TRACING": "0"}
        completed = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=False
        )
        if completed.returncode:
            return "?", [(completed.stderr.strip().splitlines() or ["?"])[-1]]
        result = json.loads(completed.stdout.splitlines()[-1])
        return result["version"], result["faults"]
    except (RuntimeError, subprocess.TimeoutExpired) as error:
        return "?", [str(error)]


def main(names: list[str]) -> int:
    """Try the named frameworks, or all."""
    names = names or list(FRAMEWORKS)
    failures = 0
    with ThreadPoolExecutor(2) as pool:
        for name, (version, faults) in zip(names, pool.map(try_framework, names), strict=True):
            distribution = FRAMEWORKS[name].distributions[0].partition("[")[0]
            print(f"| {name} | {distribution} {version} | {'; '.join(faults) or 'yes'} |", flush=True)
            failures += bool(faults)
    return int(failures > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
