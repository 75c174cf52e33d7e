"""A run of the settings file: its namespace, its stages, and what the file must say of it."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from nat.data_models.finetuning import FinetuneRunConfig

from rollbus.local.process.supervisor import Supervisor
from rollbus.nemo.checks import FinetuneOptions, describe
from rollbus.nemo.runs.folder import STATE_FILE
from rollbus.nemo.runs.plan import Plan
from rollbus.nemo.runs.processes import Processes
from rollbus.nemo.runs.road import describe_road, missing_stages, require_no_trainer
from rollbus.nemo.runs.settings import settings_of
from rollbus.schemas.errors import ConfigurationError
from rollbus.settings import Settings
from tests.health.test_picture import draw, make_beat
from tests.nemo.world import document, read

RUN = "shop"


def write_plan(tmp_path: Path, run_id: str | None = RUN, **sections: Any) -> Plan:
    """A configuration next to the settings file of production; `sections` change what that file says."""
    plain = document(tmp_path)
    plain["rollbus"] = {"data_dir": str(tmp_path / "state"), "settings_file": "rollbus.yaml"}
    if run_id is not None:
        plain["rollbus"]["run_id"] = run_id
    plan = read(tmp_path, plain)
    run_settings = settings_of(plan, RUN, "")
    backend = {"type": "art-server", "url": "http://localhost:9"}
    settings = {
        "namespace": "orders.",
        "kafka": {"bootstrap_servers": "kafka:9092"},
        "assembly": {"target_functions": ["<workflow>"]},
        "trainer": {"train": run_settings["trainer"]["train"], "backend": backend},
        "runs": [{"run_id": "main", "model": "other"}, *run_settings["runs"]],
    }
    (tmp_path / "rollbus.yaml").write_text(yaml.safe_dump({**settings, **sections}))
    return plan


def processes_of(plan: Plan) -> Processes:
    return Processes(plan, RUN, Supervisor(log_dir=plan.bus.data_dir))


def test_a_file_that_has_the_run_hosts_it_in_its_own_namespace(tmp_path: Path) -> None:
    processes = processes_of(write_plan(tmp_path))
    settings = Settings.model_validate(processes._document())
    assert processes.is_hosted
    assert settings.namespace == "orders."
    assert [run.run_id for run in settings.runs] == ["main", RUN]


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"assembly": {}}, r"assembly\.target_functions: it says \[\], and the run needs \['<workflow>'\]"),
        (
            {"trainer": {"backend": {"type": "art-server", "url": "http://127.0.0.1:9"}}},
            r"trainer\.train\.learning_rate: it says",
        ),
        ({"runs": [{"run_id": RUN}]}, r"runs\.grouping\.group_size: it says 8, and the run needs 2"),
        (
            {"scoring": {"rewards": [{"name": "thumbs"}]}},
            r"scoring\.rewards: it says \['thumbs'\], and the run needs \['good'\]",
        ),
    ],
)
def test_a_file_with_other_settings_of_the_run_is_refused(
    tmp_path: Path, sections: dict[str, Any], message: str
) -> None:
    processes = processes_of(write_plan(tmp_path, **sections))
    with pytest.raises(ConfigurationError, match=message):
        processes._document()


def test_a_check_prints_what_to_add_so_that_the_file_hosts_the_run(tmp_path: Path) -> None:
    plan = write_plan(tmp_path, runs=[{"run_id": "main", "model": "other"}])
    text = describe(FinetuneOptions(plan, FinetuneRunConfig()))
    path, section = tmp_path / "rollbus.yaml", text.partition("start its worker again:\n")[2]
    path.write_text(yaml.safe_dump({**yaml.safe_load(path.read_text()), "runs": yaml.safe_load(section)}))
    assert "which hosts run 'shop' in namespace 'orders.'" in describe_road(plan)


def test_a_check_of_a_run_without_a_name_asks_for_one(tmp_path: Path) -> None:
    assert "name the run under `rollbus: run_id`" in describe_road(write_plan(tmp_path, run_id=None))


def test_a_run_goes_on_only_where_it_began(tmp_path: Path) -> None:
    processes = processes_of(write_plan(tmp_path))
    processes._folder.mkdir(parents=True)
    processes._write(processes._document())
    (processes._folder / STATE_FILE).touch()
    write_plan(tmp_path, runs=[{"run_id": "main", "model": "other"}])
    with pytest.raises(ConfigurationError, match=r"began in namespace 'orders\.', and would go on in 'shop\.'"):
        processes_of(write_plan(tmp_path, runs=[]))._document()


def test_a_process_that_beats_for_the_run_is_not_started_again() -> None:
    settings = Settings.model_validate({"runs": [{"run_id": RUN}]})
    picture = draw(make_beat("worker", holds=("grouping.shop[0]",)), make_beat("sink"))
    assert missing_stages(settings, RUN, picture.processes) == {"trainer"}
    assert missing_stages(settings, RUN, ()) == {"worker", "sink", "trainer"}


def test_a_worker_without_the_run_must_be_started_again() -> None:
    settings = Settings.model_validate({"runs": [{"run_id": RUN}]})
    with pytest.raises(ConfigurationError, match="without run 'shop'; start it again"):
        missing_stages(settings, RUN, draw(make_beat("worker", holds=("grouping.main[0]",))).processes)


def test_an_adapter_in_this_process_allows_no_second_trainer() -> None:
    with pytest.raises(ConfigurationError, match="a trainer of run 'shop' beats"):
        require_no_trainer(frozenset({"sink"}), RUN)
