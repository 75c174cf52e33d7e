"""The manifests as kustomize renders them: Kubernetes' own schemas accept them, and they fit commands and settings."""

import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import click
import kubernetes_validate
import pytest
import yaml

from rollbus.cli.root import rollbus
from rollbus.runtime.credentials import FOLDER_VARIABLE, METRICS_TOKEN, OWNER_KEY, TOKEN
from rollbus.runtime.principals import PRINCIPALS, PRINCIPALS_KEY
from rollbus.settings import Settings
from rollbus.settings_file import load_settings
from rollbus.streams.kafka.names import group_id
from rollbus.streams.operate.acls import ROLES
from rollbus.trainer.settings import ArtServerBackend

FOLDER = Path(__file__).parents[2] / "deploy" / "kubernetes"
VERSION = "1.32"
"""The oldest that Kubernetes' developers still mend; newer ones accept what it accepts."""
TOPICS_OF_GROUPS = {
    "rollbus.assembly": "rollbus.episode-events",
    "rollbus.scoring": "rollbus.trajectories",
    "rollbus.grouping.main": "rollbus.scores",
}

pytestmark = pytest.mark.skipif(shutil.which("kubectl") is None, reason="no kubectl here to render the manifests")


@cache
def render_documents(folder: str) -> tuple[dict[str, Any], ...]:
    command = ["kubectl", "kustomize", str(FOLDER / folder)]
    return tuple(yaml.safe_load_all(subprocess.run(command, capture_output=True, text=True, check=True).stdout))


def pods(folder: str) -> dict[str, dict[str, Any]]:
    """The specification of each pod, by the name of what makes it."""
    makers = [document for document in render_documents(folder) if "template" in document.get("spec", {})]
    return {maker["metadata"]["name"]: maker["spec"]["template"]["spec"] for maker in makers}


def settings_of(folder: str) -> Settings:
    (config,) = (document for document in render_documents(folder) if document["kind"] == "ConfigMap")
    return Settings.model_validate(yaml.safe_load(config["data"]["rollbus.yaml"]))


@pytest.mark.parametrize("folder", ["base", "example"])
def test_the_schemas_of_kubernetes_accept_every_manifest(folder: str) -> None:
    for manifest in render_documents(folder):
        if not manifest["apiVersion"].startswith("keda.sh/"):
            kubernetes_validate.validate(manifest, VERSION, strict=True)


@pytest.mark.parametrize("folder", ["base", "example"])
def test_each_container_runs_a_command_with_settings_that_exist(folder: str, tmp_path: Path) -> None:
    assert set(pods(folder)) == {"topics", "worker", "sink", "trainer", "art-server", "alarms"}
    path = tmp_path / "rollbus.yaml"
    path.write_text((FOLDER / "base" / "rollbus.yaml").read_text())
    for name, pod in pods(folder).items():
        (container,) = pod["containers"]
        noun, verb = container["args"]
        group = rollbus.get_command(click.Context(rollbus), noun)
        assert isinstance(group, click.Group)
        assert verb in group.commands
        given = {entry["name"]: entry.get("value", "secret") for entry in container["env"]}
        options = {variable for option in group.commands[verb].params for variable in [option.envvar] if variable}
        given = {variable: value for variable, value in given.items() if variable not in options}
        assert given.pop("ROLLBUS_CONFIG") == "/etc/rollbus/rollbus.yaml"
        assert given.pop(FOLDER_VARIABLE) == "/run/secrets/rollbus"
        settings = load_settings(Settings, path, given)
        assert settings.art_server.host == "0.0.0.0", name


def test_probes_ask_where_the_settings_say_that_a_process_answers() -> None:
    settings = settings_of("base")
    for kind in ("worker", "sink", "trainer", "alarms"):
        (container,) = pods("base")[kind]["containers"]
        heart = settings.heart(kind)
        assert {port["containerPort"] for port in container["ports"]} == {heart.metrics_port}, kind
        assert heart.metrics_host == "0.0.0.0", kind
        assert container["livenessProbe"]["httpGet"] == {"path": "/live", "port": "metrics"}
        assert container["startupProbe"]["httpGet"] == {"path": "/live", "port": "metrics"}
    (scraped,) = (
        document["spec"]["podSelector"]
        for document in render_documents("base")
        if document["metadata"]["name"] == "metrics"
    )
    assert scraped["matchExpressions"][0]["values"] == ["worker", "sink", "trainer", "alarms"]
    (model,) = pods("base")["art-server"]["containers"]
    assert {port["containerPort"] for port in model["ports"]} == {settings.stack.art_port, settings.stack.model_port}
    assert model["readinessProbe"]["httpGet"] == {"path": "/health", "port": "model"}
    assert settings.art_server.host == "0.0.0.0"


def test_there_is_one_trainer_and_the_old_one_ends_first() -> None:
    (trainer,) = (
        document["spec"] for document in render_documents("example") if document["metadata"]["name"] == "trainer"
    )
    assert (trainer["replicas"], trainer["strategy"]["type"]) == (1, "Recreate")


def test_workers_scale_by_the_lag_of_their_groups_up_to_the_partitions() -> None:
    (scaler,) = (document["spec"] for document in render_documents("example") if document["kind"] == "ScaledObject")
    settings = settings_of("example")
    assert scaler["maxReplicaCount"] == settings.worker.event_partitions
    topic_by_group = {
        trigger["metadata"]["consumerGroup"]: trigger["metadata"]["topic"] for trigger in scaler["triggers"]
    }
    assert topic_by_group == TOPICS_OF_GROUPS
    stages = ("assembly", "scoring", f"grouping.{settings.runs[0].run_id}")
    assert set(topic_by_group) == {group_id(settings.namespace, stage) for stage in stages}
    assert {trigger["metadata"]["bootstrapServers"] for trigger in scaler["triggers"]} == {
        settings.kafka.bootstrap_servers
    }
    (worker,) = (
        document["spec"]
        for document in render_documents("example")
        if document["metadata"]["name"] == "worker" and "template" in document.get("spec", {})
    )
    assert "replicas" not in worker, "the autoscaler alone decides"


def test_each_pod_gets_the_secrets_that_it_needs_and_no_rights() -> None:
    files = {
        name: {item["path"] for volume in pod["volumes"] for item in volume.get("secret", {}).get("items", [])}
        for name, pod in pods("example").items()
    }
    assert files == {
        "topics": {"kafka_admin"},
        "worker": {"kafka_worker", OWNER_KEY, METRICS_TOKEN, PRINCIPALS_KEY, PRINCIPALS},
        "sink": {"kafka_sink", "clickhouse_password", METRICS_TOKEN},
        "trainer": {"kafka_trainer", TOKEN, METRICS_TOKEN},
        "art-server": {"kafka_trainer", TOKEN, PRINCIPALS_KEY, PRINCIPALS},
        "alarms": {"kafka_operator", METRICS_TOKEN},
    }
    keys = {
        name: {
            variable["valueFrom"]["secretKeyRef"]["key"]
            for variable in pod["containers"][0]["env"]
            if "valueFrom" in variable
        }
        for name, pod in pods("example").items()
    }
    assert keys == {
        "topics": set(),
        "worker": set(),
        "sink": set(),
        "trainer": set(),
        "art-server": set(),
        "alarms": {"alarms_url"},
    }
    assert {name.removeprefix("kafka_") for name in files["sink"]} & set(ROLES) == {"sink"}
    for pod in pods("example").values():
        assert pod["automountServiceAccountToken"] is False
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["containers"][0]["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }


def test_a_copy_for_another_run_differs_only_by_its_instance_and_its_port() -> None:
    """Policies, which let a trainer reach an ART server, must hold for copies, and a copy's own pods be its own."""
    makers = {document["metadata"]["name"]: document for document in render_documents("base")}
    for name in ("trainer", "art-server"):
        spec = makers[name]["spec"]
        chosen = {"app.kubernetes.io/name": name, "app.kubernetes.io/instance": "main"}
        assert spec["selector"]["matchLabels"] == chosen
        assert spec["template"]["metadata"]["labels"].items() >= chosen.items()
    (service,) = (document["spec"] for document in render_documents("base") if document["kind"] == "Service")
    assert service["selector"]["app.kubernetes.io/instance"] == "main"
    policies = [document["spec"] for document in render_documents("base") if document["kind"] == "NetworkPolicy"]
    assert "app.kubernetes.io/instance" not in str(policies)
    runs = [{"run_id": name, "model": name} for name in ("main", "second", "third")]
    settings = Settings.model_validate(settings_of("base").model_dump(exclude_unset=True) | {"runs": runs})
    page = (FOLDER.parents[1] / "docs" / "kubernetes.md").read_text()
    second, third = (settings.heart("trainer", name).metrics_port for name in ("second", "third"))
    assert f"`containerPort` {second} for the second run, {third} for the third" in page


def test_the_art_server_waits_for_its_model_where_it_can_be_copied_to() -> None:
    """A container that ends at once could not be copied to."""
    pod = pods("base")["art-server"]
    (waiting,) = pod["initContainers"]
    model = str(settings_of("base").art_server.base_model)
    assert model in waiting["command"][-1]
    mounts = {mount["name"]: mount["mountPath"] for mount in waiting["volumeMounts"]}
    assert model.startswith(f"{mounts['data']}/")
    assert waiting["securityContext"] == pod["containers"][0]["securityContext"]
    page = (FOLDER.parents[1] / "docs" / "kubernetes.md").read_text()
    assert f"kubectl -n rollbus exec art-server-0 -c {waiting['name']} -- mv {model}.part {model}" in page


def test_each_pod_may_call_only_what_it_needs() -> None:
    policies = {
        document["metadata"]["name"]: document["spec"]
        for document in render_documents("base")
        if document["kind"] == "NetworkPolicy"
    }
    calls = {name: policy for name, policy in policies.items() if policy["policyTypes"] == ["Egress"]}
    assert sorted(calls) == ["calls-clickhouse", "calls-kafka", "calls-training", "calls-webhook"]
    of_all = calls["calls-kafka"]
    assert of_all["podSelector"]["matchLabels"] == {"app.kubernetes.io/part-of": "rollbus"}
    peers = [peer["namespaceSelector"]["matchLabels"] for rule in of_all["egress"] for peer in rule["to"]]
    label = "kubernetes.io/metadata.name"
    assert peers == [{label: "kube-system"}, {label: "kafka"}]
    settings = settings_of("base")
    (to_tables,) = calls["calls-clickhouse"]["egress"]
    assert to_tables["ports"][0]["port"] == settings.clickhouse.port
    assert settings.clickhouse.host.endswith(to_tables["to"][0]["namespaceSelector"]["matchLabels"][label])
    (to_training,) = calls["calls-training"]["egress"]
    assert to_training["to"][0]["podSelector"]["matchLabels"]["app.kubernetes.io/name"] == "art-server"


def test_a_process_reads_its_secrets_from_the_files_of_its_pod(tmp_path: Path) -> None:
    for name in (TOKEN, METRICS_TOKEN, "clickhouse_password"):
        (tmp_path / name).write_text(f"the-{name}\n")
    path = tmp_path / "rollbus.yaml"
    text = (FOLDER / "base" / "rollbus.yaml").read_text()
    path.write_text(text.replace("/run/secrets/rollbus", str(tmp_path)))
    environment = {FOLDER_VARIABLE: str(tmp_path)}
    settings = load_settings(Settings, path, {}).with_credentials(environment)
    backend = settings.trainer_settings().backend
    assert isinstance(backend, ArtServerBackend)
    assert backend.token is not None
    assert backend.token.get_secret_value() == "the-token"
    assert settings.clickhouse.password.get_secret_value() == "the-clickhouse_password"
    assert settings.health.metrics_token is not None
    assert settings.art_server_settings(tmp_path).api_key == "the-token"
