"""The files for Prometheus and Grafana name only what is there."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import prometheus_client
import yaml
from click.testing import CliRunner

from rollbus.cli.root import rollbus
from rollbus.health.monitoring import FILES
from rollbus.runtime import metrics
from rollbus.settings import HealthSection, Kind, Settings
from rollbus.streams.exactly_once.metrics import PartitionMetrics, prometheus_text

DASHBOARD = FILES / "grafana" / "dashboards" / "rollbus.json"
KINDS = get_args(Kind)
RULES = FILES / "prometheus" / "rules.yaml"


def names_of_samples() -> set[str]:
    """Every name that a process exports, with or without samples now."""
    names = {"up"}
    registries = (prometheus_client.REGISTRY, *metrics.OF_KIND.values())
    for family in (family for registry in registries for family in registry.collect()):
        suffixes = {"histogram": ("_bucket", "_sum", "_count"), "counter": ("_total",), "info": ("_info",)}
        names |= {family.name + suffix for suffix in suffixes.get(family.type, ("",))}
    text = prometheus_text([PartitionMetrics("assembly", 0)])
    return names | set(re.findall(r"^(rollbus_\w+)\{", text, re.MULTILINE))


def expressions() -> Iterator[tuple[str, str]]:
    for group in yaml.safe_load(RULES.read_text())["groups"]:
        for rule in group["rules"]:
            yield rule["alert"], rule["expr"]
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        for target in panel["targets"]:
            if "expr" in target:
                yield panel["title"], target["expr"]


def test_every_metric_that_rules_and_dashboard_ask_for_is_exported() -> None:
    exported_names = names_of_samples()
    queried_names = {
        (where, name) for where, expr in expressions() for name in re.findall(r"\b(rollbus_\w+|up)\b", expr)
    }
    assert len(queried_names) > 20
    assert {(where, name) for where, name in queried_names if name not in exported_names} == set()


def test_a_process_exports_no_zero_for_metrics_of_other_processes() -> None:
    """`absent(rollbus_dead_letters)` says that nothing watches the log, whatever else is scraped."""
    counted = {kind: set(re.findall(r"^(rollbus_(?!build)\w+) ", metrics.render(kind), re.MULTILINE)) for kind in KINDS}
    assert "rollbus_dead_letters" in counted["alarms"]
    assert "rollbus_sink_records_total" in counted["sink"]
    assert "rollbus_resample_attempt_seconds_count" in counted["resample"]
    assert {kind for kind, names in counted.items() if names} == {"alarms", "sink", "resample"}
    assert not counted["alarms"] & counted["sink"]


def test_every_rule_leads_to_a_part_of_the_runbook() -> None:
    runbook = (Path(__file__).parents[2] / "docs" / "runbook.md").read_text()
    anchors = {line.removeprefix("## ").lower().replace(" ", "-") for line in runbook.splitlines() if "## " in line}
    for group in yaml.safe_load(RULES.read_text())["groups"]:
        for rule in group["rules"]:
            _, _, anchor = rule["annotations"]["runbook"].partition("#")
            assert not anchor or anchor in anchors


def test_the_files_have_the_addresses_of_the_settings(tmp_path: Path) -> None:
    settings = Settings.model_validate(
        {
            "clickhouse": {"host": "tables.example.com", "port": 8443, "secure": True, "database": "agents"},
            "health": {"metrics_ports": {"worker": 21464, "trainer": 21465}},
        }
    )
    (tmp_path / "rollbus.yaml").write_text(yaml.safe_dump(settings.model_dump(mode="json", exclude_unset=True)))
    arguments = ["--config", str(tmp_path / "rollbus.yaml"), "alarms", "files", str(tmp_path / "monitoring")]
    result = CliRunner().invoke(rollbus, arguments)
    assert len(result.stdout.splitlines()) == 5, result.output
    scraped = (tmp_path / "monitoring" / "prometheus" / "prometheus.yaml").read_text()
    assert scraped.startswith("# Scrape rollbus.")
    targets = yaml.safe_load(scraped)["scrape_configs"][0]["static_configs"]
    assert {target["labels"]["process"]: target["targets"][0] for target in targets} == {
        "worker": "127.0.0.1:21464",
        "trainer": "127.0.0.1:21465",
    }
    sources = yaml.safe_load((tmp_path / "monitoring/grafana/provisioning/datasources/rollbus.yaml").read_text())
    tables = sources["datasources"][1]["jsonData"]
    assert (tables["host"], tables["port"], tables["protocol"]) == ("tables.example.com", 8443, "https")
    assert tables["defaultDatabase"] == "agents"
    assert (tmp_path / "monitoring" / "prometheus" / "rules.yaml").read_text() == RULES.read_text()


def test_without_a_port_the_files_say_which_setting_gives_one(tmp_path: Path) -> None:
    result = CliRunner().invoke(rollbus, ["alarms", "files", str(tmp_path / "monitoring")])
    assert "set `health: metrics_ports:`" in result.stderr


def test_the_trainers_of_one_settings_file_have_ports_of_their_own() -> None:
    settings = Settings.model_validate(
        {
            "runs": [{"run_id": "small", "model": "mouse"}, {"run_id": "large", "model": "bear"}],
            "health": {"metrics_ports": {"trainer": 9465, "sink": 9466}},
        }
    )
    ports = [settings.heart("trainer", run.run_id).metrics_port for run in settings.runs]
    assert ports == [9465, 9475]
    addresses = settings.metrics_addresses()
    assert addresses["trainer of large"] == "127.0.0.1:9475"
    assert len(set(addresses.values())) == len(addresses)
    free = settings.model_copy(update={"health": HealthSection(metrics_ports={"trainer": 0})})
    assert free.heart("trainer", "large").metrics_port == 0
