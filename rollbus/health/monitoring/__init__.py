"""Prometheus' and Grafana's files, as they are written for an operator: `files/` with the addresses of the settings."""

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

FILES = Path(__file__).parent / "files"
SCRAPED = Path("prometheus", "prometheus.yaml")
SOURCES = Path("grafana", "provisioning", "datasources", "rollbus.yaml")


@dataclass(frozen=True, slots=True)
class Addresses:
    """What the files point to."""

    metrics: Mapping[str, str]
    """Kind of process → `host:port` of its /metrics."""
    clickhouse_host: str
    clickhouse_port: int
    clickhouse_protocol: str
    database: str


def write_files(folder: Path, addresses: Addresses) -> list[Path]:
    """Write the files into a folder, over those of an earlier release; return their paths."""
    shutil.copytree(FILES, folder, dirs_exist_ok=True)
    scraped, sources = _read(folder / SCRAPED), _read(folder / SOURCES)
    scraped["scrape_configs"][0]["static_configs"] = [
        {"targets": [address], "labels": {"process": kind}} for kind, address in addresses.metrics.items()
    ]
    (tables,) = (source for source in sources["datasources"] if "clickhouse" in source["type"])
    tables["jsonData"] |= {
        "host": addresses.clickhouse_host,
        "port": addresses.clickhouse_port,
        "protocol": addresses.clickhouse_protocol,
        "defaultDatabase": addresses.database,
    }
    _write(folder / SCRAPED, scraped)
    _write(folder / SOURCES, sources)
    return sorted(folder / path.relative_to(FILES) for path in FILES.rglob("*") if path.is_file())


def _read(path: Path) -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return document


def _write(path: Path, document: dict[str, Any]) -> None:
    """Write it with the comment at the head of the file."""
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    head = "".join(line for line in lines if line.startswith("#"))
    path.write_text(head + yaml.safe_dump(document, sort_keys=False), encoding="utf-8")
