"""Find Java and Kafka's jars; Maven fetches the jars into the user's cache once, and each is checked before it is run.

Only a folder whose jars all have their pinned SHA-256 is put into the cache, whole, by one rename.
"""

import hashlib
import logging
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

from rollbus.runtime.files import hold_lock
from rollbus.runtime.machine import user_cache
from rollbus.schemas.errors import ConfigurationError, UnavailableError

logger = logging.getLogger(__name__)

JARS_VARIABLE = "ROLLBUS_KAFKA_JARS"
CHECKSUMS = Path(__file__).resolve().with_name("jars.sha256")
POM = CHECKSUMS.with_name("pom.xml")
SHOWN_LETTERS = 600
"""Of what Maven says when it fails: its first error and the address that it asked."""


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


def find_jars(*, report: Callable[[str], None] = logger.info) -> Path:
    """Folder with Kafka's jars, every one checked; fetches them first if the user's cache lacks them.

    ConfigurationError for other jars than the pinned ones or without Maven, UnavailableError if they cannot be fetched.
    """
    named_folder = os.environ.get(JARS_VARIABLE)
    folder = Path(named_folder) if named_folder else cached_jars()
    if not named_folder and not folder.is_dir():
        fetch_jars(folder, report=report)
    verify_jars(folder)
    return folder


def cached_jars() -> Path:
    """Return where this release's jars are once they are fetched; the name is the hash of what they are to be."""
    return user_cache() / f"kafka-{hashlib.sha256(POM.read_bytes() + CHECKSUMS.read_bytes()).hexdigest()[:12]}"


def fetch_jars(folder: Path, *, report: Callable[[str], None]) -> None:
    """Let Maven fetch the jars and check them, then make them the folder; other processes wait for the first."""
    maven = shutil.which("mvn")
    if maven is None:
        raise ConfigurationError(
            "Maven fetches Kafka's jars, once, and there is no `mvn` on the path; on Debian: apt install maven. Or "
            f"copy {folder} from a machine that has it, or set {JARS_VARIABLE} to a folder with the jars"
        )
    folder.parent.mkdir(parents=True, exist_ok=True)
    with hold_lock(folder.with_suffix(".lock")):
        if folder.is_dir():
            return
        report(f"fetching Kafka's jars with Maven into {folder} (43 MB, once)")
        with tempfile.TemporaryDirectory(prefix=".kafka-", dir=folder.parent) as temporary:
            partial = Path(temporary) / "jars"
            _run_maven(maven, Path(temporary), partial)
            try:
                verify_jars(partial)
            except ConfigurationError as error:
                raise ConfigurationError(
                    "Maven fetched other jars than this release knows, so nothing of them is kept; see which "
                    f"repository it is configured with, and ask who runs that ({error})"
                ) from error
            partial.rename(folder)


def verify_jars(folder: Path) -> None:
    """Raise ConfigurationError unless the folder holds exactly the pinned jars."""
    pinned = read_checksums(CHECKSUMS)
    present = {path.name for path in folder.glob("*.jar")}
    missing, extra = sorted(pinned.keys() - present), sorted(present - pinned.keys())
    remedy = f"remove the folder, and unset {JARS_VARIABLE} if it names that: the next start fetches them"
    if missing or extra:
        raise ConfigurationError(
            f"{folder} does not hold the pinned Kafka jars (missing: {', '.join(missing) or 'none'}; "
            f"unknown: {', '.join(extra) or 'none'}); {remedy}"
        )
    for name, expected_digest in pinned.items():
        if hashlib.sha256((folder / name).read_bytes()).hexdigest() != expected_digest:
            raise ConfigurationError(f"{folder / name} does not have its pinned SHA-256; {remedy}")


def read_checksums(path: Path) -> dict[str, str]:
    """File name → SHA-256 from the lines that `sha256sum` writes."""
    lines = path.read_text(encoding="ascii").splitlines()
    return {name: digest for digest, name in (line.split() for line in lines if line)}


def _run_maven(maven: str, work: Path, jars: Path) -> None:
    """Copy the jars of a copy of pom.xml, since the installed one may lie where nothing can be written."""
    pom = shutil.copy(POM, work)
    command = [maven, "-B", "-q", "-C", "-Dstyle.color=never", "-f", str(pom), f"-Djars={jars}", "package"]
    process = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", check=False
    )
    if process.returncode:
        output = " ".join((process.stdout + process.stderr).split())[:SHOWN_LETTERS]
        raise UnavailableError(
            f"Maven could not fetch Kafka's jars: {output}; see which repository it is configured with and whether it "
            f"can be reached, and start again. Or set {JARS_VARIABLE} to a folder with the jars"
        )
