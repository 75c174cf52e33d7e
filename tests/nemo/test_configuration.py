"""The guides' YAML is read as it stands; every mistake is named with its nearest right word; overrides reach all."""

import json
import sys
from functools import reduce
from importlib import import_module
from operator import getitem
from pathlib import Path
from typing import Any

import pytest
import yaml
from nat.data_models.config import Config
from nat.data_models.evaluator import EvalInput, EvalInputItem
from nat.plugins.customizer.dpo.config import NeMoCustomizerTrainerAdapterConfig
from nat.plugins.eval.dataset_handler.dataset_handler import DatasetHandler
from nat.plugins.openpipe.config import ARTTrainerAdapterConfig

from rollbus.nemo.components import ART_TYPES, ARTBackendConfig, BusTrainerAdapterConfig, BusTrajectoryBuilderConfig
from rollbus.nemo.configuration import load_plan, with_dataset
from rollbus.nemo.runs.settings import settings_of
from rollbus.nemo.training_args import REPLACEMENT_BY_FIELD, SETTING_BY_FIELD
from rollbus.schemas.errors import ConfigurationError
from tests.nemo import guide_components
from tests.nemo.world import document

GUIDES = Path(__file__).parent / "guides"
ENVIRONMENT = {"TRAINING_API_KEY": "s3cret", "NVIDIA_API_KEY": "s3cret"}


def load(path: Path, *overrides: tuple[str, str]) -> Config:
    return load_plan(path, overrides).config


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)


def adapter_of(config: Config) -> BusTrainerAdapterConfig:
    adapter = config.trainer_adapters["art_adapter"]
    assert isinstance(adapter, BusTrainerAdapterConfig)
    return adapter


def test_the_art_guides_configuration_is_read_unchanged() -> None:
    config = load(GUIDES / "art.yml")
    adapter = adapter_of(config)
    assert adapter.backend.url == "http://localhost:7623"
    assert (adapter.backend.name, adapter.backend.base_model) == ("my_training_run", "Qwen/Qwen2.5-3B-Instruct")
    assert adapter.training is not None
    assert adapter.training.learning_rate == 1e-6
    builder = config.trajectory_builders["art_builder"]
    assert isinstance(builder, BusTrajectoryBuilderConfig)
    assert builder.num_generations == 2
    assert config.finetuning.num_epochs == 20
    assert config.finetuning.target_functions == ["<workflow>"]
    assert config.eval.general.max_concurrency == 16


def test_the_extending_guides_configuration_is_read_with_its_environment() -> None:
    config = load(GUIDES / "extending.yml")
    adapter = config.trainer_adapters["my_adapter"]
    assert isinstance(adapter, guide_components.MyTrainerAdapterConfig)
    assert adapter.backend.api_key == "s3cret"
    assert adapter.backend.batch_size == 8
    assert adapter.backend.timeout == 3600
    assert config.finetuning.curriculum_learning.enabled


def test_the_dpo_guides_configuration_is_read_unchanged() -> None:
    config = load(GUIDES / "dpo.yml")
    adapter = config.trainer_adapters["nemo_adapter"]
    assert isinstance(adapter, NeMoCustomizerTrainerAdapterConfig)
    assert (adapter.deployment_timeout_seconds, adapter.hyperparameters.learning_rate) == (1800.0, 5e-6)


@pytest.mark.parametrize("fragment", yaml.safe_load((GUIDES / "fragments.yml").read_text()), ids=json.dumps)
def test_every_fragment_of_the_art_guide_fits_into_its_configuration(fragment: Any, tmp_path: Path) -> None:
    whole = _laid_over(yaml.safe_load((GUIDES / "art.yml").read_text()), fragment)
    path = tmp_path / "whole.yml"
    path.write_text(yaml.safe_dump(whole))
    config = load(path)
    plain = config.model_dump(mode="json", by_alias=True)
    for entry in fragment.get("trainer_adapters", {}).values():
        entry["_type"] = ART_TYPES[entry["_type"]]
    assert _laid_over(plain, fragment) == plain


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("finetuning.num_epochs", "50", 50),
        ("llms.training_llm.temperature", "1.0", 1.0),
        ("eval.general.max_concurrency", "3", 3),
        ("trainer_adapters.art_adapter.training.beta", "0.25", 0.25),
        ("trainer_adapters.art_adapter.backend.init_args.max_seq_length", "512", 512),
        ("trajectory_builders.art_builder.num_generations", "8", 8),
        ("workflow.llm", "training_llm", "training_llm"),
    ],
)
def test_an_override_reaches_its_section(key: str, text: str, value: Any) -> None:
    plain = load(GUIDES / "art.yml", (key, text)).model_dump(mode="json", by_alias=True)
    assert reduce(getitem, key.split("."), plain) == value


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("num_epochs:", "num_epoch:", "line 54: finetuning.num_epoch: is not a setting; did you mean 'num_epochs'?"),
        ("learning_rate:", "learningrate:", "training.learningrate: is not a setting; did you mean 'learning_rate'?"),
        ("max_concurrency:", "concurrency:", "did you mean 'max_concurrency'?"),
        ("finetuning:", "fine_tuning:", "fine_tuning: is not a setting; did you mean 'finetuning'?"),
        ("_type: openpipe_art_trainer\n", "_type: openpipe_trainer\n", "did you mean 'openpipe_art_trainer'?"),
        (
            "trainer: art_trainer",
            "trainer: art_trainr",
            "trainers has no entry 'art_trainr'; did you mean 'art_trainer'?",
        ),
        ("name: my_reward", "name: my_rewards", "eval.evaluators has no entry 'my_rewards'; did you mean 'my_reward'?"),
        ("port: 7623", "port: here", "backend.port: Input should be a valid integer"),
        ("_type: my_workflow", "_type: my_workflo", "workflow: has no type 'my_workflo'; did you mean 'my_workflow'?"),
    ],
)
def test_a_mistake_is_named_with_what_was_meant(old: str, new: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "config.yml"
    path.write_text((GUIDES / "art.yml").read_text().replace(old, new, 1))
    with pytest.raises(ConfigurationError) as refusal:
        load(path)
    assert message in str(refusal.value)


def test_a_key_that_a_users_own_class_would_pass_over_is_a_mistake(tmp_path: Path) -> None:
    path = tmp_path / "config.yml"
    path.write_text((GUIDES / "extending.yml").read_text().replace("batch_size: 8", "batch_sise: 8"))
    with pytest.raises(ConfigurationError, match="did you mean 'batch_size'"):
        load(path)


def test_every_field_of_arts_trainer_arguments_is_used_or_refused_by_name(tmp_path: Path) -> None:
    annotation: Any = ARTTrainerAdapterConfig.model_fields["training"].annotation
    declared, _ = annotation.__args__
    assert SETTING_BY_FIELD.keys() | REPLACEMENT_BY_FIELD.keys() == declared.__annotations__.keys()
    assert not SETTING_BY_FIELD.keys() & REPLACEMENT_BY_FIELD.keys()
    path = tmp_path / "config.yml"
    path.write_text((GUIDES / "art.yml").read_text().replace("learning_rate:", "warmup_steps: 5\n      learning_rate:"))
    line = path.read_text().splitlines().index("      warmup_steps: 5") + 1
    adapter = "trainer_adapters.art_adapter.training"
    with pytest.raises(ConfigurationError) as refusal:
        load_plan(path, [(f"{adapter}.max_steps", "9")])
    first, *mistakes = str(refusal.value).splitlines()
    assert first.startswith("2 mistake(s)")
    assert mistakes == [
        f"  line {line}: {adapter}.warmup_steps: is not used here; instead: nothing: the rate is constant",
        f"  -o {adapter}.max_steps: {adapter}.max_steps: is not used here; instead: `finetuning.num_epochs`",
    ]


def test_the_training_section_reaches_the_trainer() -> None:
    values = {"max_grad_norm": 0.5, "weight_decay": 0.1, "adam_beta1": 0.8, "adam_beta2": 0.95, "seed": 7}
    named = [(f"trainer_adapters.art_adapter.training.{name}", str(value)) for name, value in values.items()]
    train = settings_of(load_plan(GUIDES / "art.yml", named), "r", "r.")["trainer"]["train"]
    assert train == {**values, "learning_rate": 1e-6, "kl_coefficient": 0.0}


def test_another_version_of_the_toolkit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rollbus.nemo.toolkit_version.version", lambda name: "1.4.1")
    message = r"made for nvidia-nat-core 1\.9\.x, and 1\.4\.1 is installed"
    with pytest.raises(ConfigurationError, match=message):
        load(GUIDES / "art.yml")
    monkeypatch.delitem(sys.modules, "rollbus.nemo.register", raising=False)
    with pytest.raises(ConfigurationError, match=message):
        import_module("rollbus.nemo.register")


def test_all_mistakes_are_reported_together(tmp_path: Path) -> None:
    text = (GUIDES / "art.yml").read_text().replace("num_epochs", "epochs").replace("learning_rate", "rate")
    path = tmp_path / "config.yml"
    path.write_text(text)
    with pytest.raises(ConfigurationError, match=r"2 mistake\(s\)"):
        load(path)


def test_an_unset_variable_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRAINING_API_KEY")
    with pytest.raises(ConfigurationError, match=r"\$\{TRAINING_API_KEY\} is not set") as refusal:
        load(GUIDES / "extending.yml")
    assert len(str(refusal.value).splitlines()) == 2, "it makes no other mistakes"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("port: 7623", "port: ${NO_SUCH}"),
        ("_type: my_workflow", "_type: ${NO_SUCH}"),
        ("num_epochs: 20", "num_epochs: ${NO_SUCH}"),
    ],
)
def test_an_unset_variable_is_one_mistake_for_every_setting(tmp_path: Path, old: str, new: str) -> None:
    path = tmp_path / "config.yml"
    path.write_text((GUIDES / "art.yml").read_text().replace(old, new, 1))
    with pytest.raises(ConfigurationError, match=r"1 mistake\(s\) .*\n.*\$\{NO_SUCH\} is not set"):
        load(path)


@pytest.mark.parametrize("text", ["Answer: yes: or no", "@home", "100%, [not more", "%a"])
def test_an_override_that_is_not_yaml_is_text(text: str) -> None:
    assert load(GUIDES / "art.yml", ("workflow.llm", text)).workflow.llm == text  # type: ignore[attr-defined]


@pytest.mark.parametrize("key", ["llms", "trainers", "eval.evaluators"])
def test_a_value_in_place_of_a_table_is_a_mistake(key: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"-o {key}: {key}: Input should be a valid dictionary"):
        load(GUIDES / "art.yml", (key, "1"))


def test_an_override_of_an_entry_that_is_not_there_is_a_mistake() -> None:
    with pytest.raises(ConfigurationError, match=r"trainer_adapters\.art_adaptor: has no `_type`"):
        load(GUIDES / "art.yml", ("trainer_adapters.art_adaptor.training.beta", "1"))


def _laid_over(base: Any, over: Any) -> Any:
    if isinstance(base, dict) and isinstance(over, dict):
        return {**base, **{key: _laid_over(base.get(key), value) for key, value in over.items()}}
    return float(over) if isinstance(base, float) else over  # PyYAML reads 1e-6 as text


def with_bus(tmp_path: Path, **bus: Any) -> Path:
    plain = document(tmp_path)
    rollbus_section = plain.pop("rollbus")
    plain["trainers"] = {
        name: {"_type": "rollbus_trainer", "bus": {**rollbus_section, **bus}} for name in plain["trainers"]
    }
    path = tmp_path / "config.yml"
    path.write_text(yaml.safe_dump(plain))
    return path


def test_the_section_under_the_trainer_is_read_as_in_nat_finetune(tmp_path: Path) -> None:
    path = with_bus(tmp_path, run_id="shop")
    assert load_plan(path).bus.run_id == "shop"
    path.write_text(path.read_text() + "rollbus: {run_id: other}\n")
    assert load_plan(path).bus.run_id == "other", "the section is before it"


def test_a_mistake_under_the_trainer_is_reported_once(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError) as refusal:
        load_plan(with_bus(tmp_path, group_per_step=6))
    assert str(refusal.value).count("group_per_step") == 1, refusal.value
    assert "did you mean 'groups_per_step'?" in str(refusal.value)


WORKFLOW = "workflow: {_type: current_datetime}\n"


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "config.yml"
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        ("# nothing yet\n", "is empty"),
        (f"{WORKFLOW}finetuning:\n", r"line 2: finetuning: Input should be a valid dictionary"),
        (f"{WORKFLOW}finetuning: [enabled]\n", r"line 2: finetuning: Input should be a valid dictionary"),
        (f"{WORKFLOW}rollbus:\n  imports:\n", r"rollbus\.imports: Input should be a list"),
        (f"{WORKFLOW}rollbus:\n  imports: [null]\n", r"rollbus\.imports\[0\]: Input should be a valid string"),
        (f"{WORKFLOW}trainers: {{t: {{_type: [a]}}}}\n", r"trainers\.t: has no type \['a'\]|trainers\.t"),
        (f"{WORKFLOW}trainers: {{}}\nfinetuning: {{trainer: [t]}}\n", r"finetuning\.trainer: Input should be"),
    ],
)
def test_a_part_of_another_shape_is_a_mistake_in_words(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=message):
        load_plan(write(tmp_path, text))


def test_an_override_fills_a_section_that_is_blank(tmp_path: Path) -> None:
    path = write(tmp_path, f"{WORKFLOW}finetuning:\n")
    assert load(path, ("finetuning.num_epochs", "2")).finetuning.num_epochs == 2


@pytest.mark.parametrize(("name", "kind"), [("examples.JSONL", "jsonl"), ("examples.xlsx", "xls")])
def test_a_data_set_is_read_by_its_ending_in_capitals_too(tmp_path: Path, name: str, kind: str) -> None:
    config = load(write(tmp_path, WORKFLOW))
    dataset = with_dataset(config, name).eval.general.dataset
    assert dataset is not None
    assert dataset.type == kind


def read_questions(file_path: Path, first_id: int) -> EvalInput:
    """A user's own reader: a question a line."""
    questions = enumerate(Path(file_path).read_text().splitlines(), start=first_id)
    return EvalInput(
        eval_input_items=[
            EvalInputItem(id=number, input_obj=question, expected_output_obj="", full_dataset_entry={})
            for number, question in questions
        ]
    )


@pytest.mark.parametrize("name", ["held_out.txt", "held_out.json"])
def test_another_data_set_is_read_by_the_function_of_a_custom_one(tmp_path: Path, name: str) -> None:
    function = f"{__name__}.{read_questions.__name__}"
    section = f"{{_type: custom, file_path: train.txt, function: {function}, kwargs: {{first_id: 7}}}}"
    config = load(write(tmp_path, f"{WORKFLOW}eval: {{general: {{dataset: {section}}}}}\n"))
    (tmp_path / name).write_text("Who?\nWhy?\n")
    dataset = with_dataset(config, tmp_path / name).eval.general.dataset
    examples = DatasetHandler(dataset, reps=1, concurrency=1).get_eval_input_from_dataset(None)  # type: ignore[arg-type]
    assert [(item.id, item.input_obj) for item in examples.eval_input_items] == [(7, "Who?"), (8, "Why?")]


def test_a_data_set_whose_ending_says_no_format_is_refused(tmp_path: Path) -> None:
    config = load(write(tmp_path, WORKFLOW))
    with pytest.raises(ConfigurationError, match=r"dataset examples\.txt.*\.csv"):
        with_dataset(config, "examples.txt")


def test_the_address_of_a_server_may_be_of_ip_version_6() -> None:
    assert ARTBackendConfig(ip="::1", port=7623).url == "http://[::1]:7623"
    assert ARTBackendConfig(ip="[::1]", port=7623).url == "http://[::1]:7623"
