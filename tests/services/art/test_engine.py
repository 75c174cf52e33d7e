"""With ART's own service chosen, every setting reaches what ART hands to Unsloth and vLLM. No GPU is in this test."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.services.art.engine_case import CHOICES, CONFIG, OPTIONS
from tests.services.art.fixtures import Launcher

pytestmark = pytest.mark.services


@pytest.fixture(scope="module")
def engine_report(
    art_launcher: Launcher, art_base_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("engine")
    arguments = (str(art_base_model), str(folder / "art"), str(folder / "report.json"))
    art_launcher.call("tests.services.art.engine_case:train", *arguments)
    assert (folder / "report.json").exists(), art_launcher.log.read_text()[-4000:]
    loaded: dict[str, Any] = json.loads((folder / "report.json").read_bytes())
    return loaded


def test_the_model_is_made_with_the_settings(engine_report: dict[str, Any], art_base_model: Path) -> None:
    first_call = engine_report["received"][0]
    config, lora = first_call["config"], first_call["config"]["lora_config"]
    assert (first_call["model_name"], first_call["base_model"]) == ("agent", str(art_base_model))
    init, engine = config["init_args"], config["engine_args"]
    assert (init["max_seq_length"], init["load_in_4bit"], init["load_in_8bit"]) == (96, False, True)
    assert (engine["max_model_len"], engine["max_num_seqs"], engine["logprobs_mode"]) == (96, 12, "processed_logprobs")
    assert (engine["gpu_memory_utilization"], engine["tensor_parallel_size"]) == (0.45, 2)
    assert (lora["rank"], lora["alpha"]) == (4, 32)
    modules = "q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"
    assert tuple(lora["target_modules"]) == modules
    assert config["trainer_args"]["gradient_accumulation_steps"] == 16
    assert (config["trainer_gpu_ids"], config["inference_gpu_ids"]) == ([0], [1, 2])
    server = engine_report["received"][1]["server"]
    assert (server["host"], server["port"], server["api_key"]) == ("127.0.0.1", 8123, "secret")


def test_an_update_is_asked_for_with_the_settings(engine_report: dict[str, Any]) -> None:
    update = next(call for call in engine_report["received"] if "train" in call)
    train, dev = update["train"], update["dev"]
    assert (train["learning_rate"], train["kl_penalty_coef"]) == (CONFIG.learning_rate, CONFIG.kl_coefficient)
    assert OPTIONS.art is not None
    assert train["grad_accumulation_sequences"] == OPTIONS.art.gradient_accumulation
    assert (dev["ppo"], dev["epsilon"], dev["epsilon_high"]) == (True, 0.15, 0.3)
    assert (dev["importance_sampling_level"], dev["truncated_importance_sampling"]) == ("sequence", 1.5)
    assert dev["precalculate_logprobs"], "without it ART leaves the correction out"
    assert dev["kl_ref_adapter_path"].endswith("checkpoints/0001")
    assert update["rows"] == 16, "one trajectory a row, where packing is off"


def test_each_choice_has_its_name_in_arts_terms(engine_report: dict[str, Any]) -> None:
    four, none, external = (engine_report["translations"][name] for name in CHOICES)
    assert (four["model"]["init_args"]["load_in_4bit"], four["model"]["init_args"]["load_in_8bit"]) == (True, False)
    assert (none["model"]["init_args"]["load_in_4bit"], none["model"]["init_args"]["load_in_8bit"]) == (False, False)
    assert four["lora"] is None
    assert (none["lora"]["rank"], len(none["lora"]["target_modules"])) == (2, 7)
    assert external["model"]["vllm_runtime"] == {"mode": "external", "server_url": "http://gpu-2:8000"}
    update = none["update"]
    assert (update["loss_fn"], update["epsilon"], update["epsilon_high"]) == ("cispo", 0.75, 2.0)
    assert (update["kl_penalty_coef"], "kl_penalty_reference_step" in update) == (0.5, False)
    assert not {"truncated_importance_sampling", "precalculate_logprobs"} & update.keys()


def test_with_packing_several_trajectories_share_a_row(engine_report: dict[str, Any]) -> None:
    assert 0 < engine_report["packed_rows"] < 16


def test_batches_become_versions_with_their_results(engine_report: dict[str, Any]) -> None:
    assert engine_report["result"] == [2, 16, 0.5]
    assert "deterministic=False" in engine_report["capabilities"]
    assert "rolls_back=False" in engine_report["capabilities"]


def test_a_setting_outside_arts_own_service_is_refused_by_name(engine_report: dict[str, Any]) -> None:
    dppo, entropy, decay, rollback = engine_report["refusals"]
    assert {refusal.partition(":")[0] for refusal in (dppo, entropy, decay)} == {"UnavailableError"}, (
        "no batch is at fault"
    )
    assert "does not know loss: dppo" in dppo
    assert "does not know entropy_bonus" in entropy
    assert "does not know weight_decay" in decay
    assert "cannot go back to 0" in rollback


def test_art_is_registered_again_after_a_failed_update(engine_report: dict[str, Any]) -> None:
    assert engine_report["failure"].startswith("UnavailableError")
    assert "device-side assert" in engine_report["failure"]
    assert engine_report["registrations"] == 2
    assert [call["model_name"] for call in engine_report["received"] if "config" in call] == ["agent"] * 3


def test_a_batch_that_its_checkpoint_does_not_name_may_train_again(
    engine_report: dict[str, Any],
) -> None:
    assert engine_report["after"] == [0, 1, 2]
    assert engine_report["recorded"] == [True, True, False]
