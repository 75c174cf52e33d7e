"""What the broker is given on disk: jars that are the pinned ones, its configuration, a data folder in one piece."""

from pathlib import Path

import pytest

from rollbus.local.kafka import jars as kafka_jars
from rollbus.local.kafka.config import server_properties
from rollbus.local.kafka.jars import CHECKSUMS, find_jars, find_java, read_checksums, verify_jars
from rollbus.local.kafka.service import is_formatted, prepare
from rollbus.schemas.errors import ConfigurationError, UnavailableError


def properties(log_dir: Path) -> dict[str, str]:
    text = server_properties(client_port=19092, controller_port=19093, log_dir=log_dir)
    assert text.isascii()
    return dict(line.split("=", 1) for line in text.splitlines())


def test_the_broker_listens_on_loopback_only(tmp_path: Path) -> None:
    written = properties(tmp_path)
    assert written["listeners"] == "CLIENT://127.0.0.1:19092,CONTROLLER://127.0.0.1:19093"
    assert written["advertised.listeners"] == "CLIENT://127.0.0.1:19092"
    assert written["controller.quorum.voters"] == "1@127.0.0.1:19093"


def test_a_folder_with_odd_characters_is_escaped_for_java() -> None:
    assert properties(Path("/data/möwe\\x"))["log.dirs"] == "/data/m\\u00f6we\\\\x"
    assert properties(Path("/data/🚌1"))["log.dirs"] == "/data/\\ud83d\\ude8c1", "Java reads four digits at a time"


@pytest.mark.parametrize("name", ["a,b", "a\nb"])
def test_a_folder_that_kafka_would_read_as_another_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"comma.*data_dir"):
        properties(tmp_path / name)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of a user whose path has no program."""
    monkeypatch.delenv(kafka_jars.JARS_VARIABLE, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    return tmp_path / "cache" / "rollbus"


def install_maven(folder: Path, script: str) -> None:
    """Put a program named mvn on the path, which gets the folder for the jars as $jars."""
    program = folder / "bin" / "mvn"
    program.parent.mkdir()
    program.write_text(f"#!/bin/bash\nfor word; do [[ $word == -Djars=* ]] && jars=${{word#-Djars=}}; done\n{script}\n")
    program.chmod(0o755)


def test_without_maven_the_user_learns_what_to_install(cache: Path) -> None:
    with pytest.raises(ConfigurationError, match="apt install maven"):
        find_jars()
    assert not cache.exists()


def test_an_absent_repository_is_reported_in_mavens_words(cache: Path, tmp_path: Path) -> None:
    install_maven(tmp_path, "echo '[ERROR] repo.example.org: Unknown host'; exit 1")
    with pytest.raises(UnavailableError, match=r"repo\.example\.org: Unknown host.*can be reached"):
        find_jars()
    assert [path.suffix for path in cache.iterdir()] == [".lock"]


def test_other_jars_than_the_pinned_ones_are_not_kept(cache: Path, tmp_path: Path) -> None:
    names = " ".join(read_checksums(CHECKSUMS))
    install_maven(tmp_path, f'/bin/mkdir "$jars"; cd "$jars"; for name in {names}; do echo forged > $name; done')
    with pytest.raises(ConfigurationError, match=r"other jars than this release knows.*who runs that"):
        find_jars()
    assert [path.suffix for path in cache.iterdir()] == [".lock"]


def test_what_maven_says_in_another_encoding_is_still_reported(cache: Path, tmp_path: Path) -> None:
    install_maven(tmp_path, r"printf 'H\xf4te inconnu'; exit 1")
    with pytest.raises(UnavailableError, match="te inconnu"):
        find_jars()


def test_a_missing_java_names_its_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    with pytest.raises(ConfigurationError, match="openjdk-17-jre-headless"):
        find_java()


def test_a_too_old_java_is_reported_in_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\necho 'java.lang.UnsupportedClassVersionError: kafka/Kafka' >&2; exit 1\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(ConfigurationError, match=r"bin/java is older than Java 17"):
        prepare(tmp_path / "kafka", client_port=1, controller_port=2)


def test_jars_that_are_not_the_pinned_ones_are_refused(tmp_path: Path) -> None:
    pinned = read_checksums(CHECKSUMS)
    assert any(name.startswith("kafka_2.13-4.1.0") for name in pinned)
    for name in pinned:
        (tmp_path / name).write_bytes(b"not the jar")
    with pytest.raises(ConfigurationError, match="SHA-256"):
        verify_jars(tmp_path)
    next(tmp_path.iterdir()).unlink()
    (tmp_path / "extra.jar").write_bytes(b"")
    with pytest.raises(ConfigurationError, match=r"unknown: extra\.jar"):
        verify_jars(tmp_path)


def test_an_empty_data_folder_is_new_and_a_whole_one_is_kept(tmp_path: Path) -> None:
    assert not is_formatted(tmp_path)
    (tmp_path / "meta.properties").write_text("#\nnode.id=1\nversion=1\ncluster.id=abc\n")
    assert is_formatted(tmp_path)


@pytest.mark.parametrize("meta", [None, "", "version=1\nnode.i"])
def test_a_half_written_data_folder_is_refused(tmp_path: Path, meta: str | None) -> None:
    (tmp_path / "bootstrap.checkpoint").write_bytes(b"")
    if meta is not None:
        (tmp_path / "meta.properties").write_text(meta)
    with pytest.raises(ConfigurationError, match=r"half written.*remove it"):
        is_formatted(tmp_path)
