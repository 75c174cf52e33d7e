"""Find Java and Kafka's jars, and check the jars against their pinned SHA-256 before anything of them is run."""

import hashlib
import os
import shutil
from pathlib import Path

from rollbus.schemas.errors import ConfigurationError

JARS_VARIABLE = "ROLLBUS_KAFKA_JARS"
CHECKSUMS = Path(__file__).resolve().with_name("jars.sha256")
CHECKOUT_JARS = Path(__file__).resolve().parents[3] / "target" / "kafka"
"""Where `mvn package` in a checkout copies them."""
MAKE_TARGET = "make kafka"


def find_java() -> str:
    """Path of the Java that runs the broker: JAVA_HOME's if set, else the one on the path."""
    home = os.environ.get("JAVA_HOME")
    candidate = Path(home) / "bin" / "java" if home else None
    if candidate is not None and candidate.is_file():
        return str(candidate)
    java = shutil.which("java")
    if java is None:
        raise ConfigurationError(
            "Kafka needs Java 17 or later, and there is no `java` on the path; "
            "on Debian: apt install openjdk-17-jre-headless"
        )
    return java


def find_jars() -> Path:
    """Folder with Kafka's jars, every one checked."""
    named = os.environ.get(JARS_VARIABLE)
    folder = Path(named) if named else CHECKOUT_JARS
    if not any(folder.glob("kafka_2.13-*.jar")):
        hint = "" if shutil.which("mvn") else " (it needs Maven; on Debian: apt install maven)"
        raise ConfigurationError(
            f"no Kafka jars in {folder}; run `{MAKE_TARGET}` in the checkout{hint}, "
            f"or set {JARS_VARIABLE} to their folder"
        )
    verify_jars(folder)
    return folder


def verify_jars(folder: Path) -> None:
    """Raise ConfigurationError unless the folder holds exactly the pinned jars."""
    pinned = read_checksums(CHECKSUMS)
    present = {path.name for path in folder.glob("*.jar")}
    missing, extra = sorted(pinned.keys() - present), sorted(present - pinned.keys())
    if missing or extra:
        raise ConfigurationError(
            f"{folder} does not hold the pinned Kafka jars (missing: {', '.join(missing) or 'none'}; "
            f"unknown: {', '.join(extra) or 'none'}); remove the folder and run `{MAKE_TARGET}`"
        )
    for name, expected in pinned.items():
        if hashlib.sha256((folder / name).read_bytes()).hexdigest() != expected:
            raise ConfigurationError(
                f"{folder / name} does not have its pinned SHA-256; remove the folder and run `{MAKE_TARGET}`"
            )


def read_checksums(path: Path) -> dict[str, str]:
    """File name → SHA-256 from the lines that `sha256sum` writes."""
    lines = path.read_text(encoding="ascii").splitlines()
    return {name: digest for digest, name in (line.split() for line in lines if line)}
