"""Exports for each trainer, read by the trainer itself: `make test-readers`."""

import json
from pathlib import Path

import pytest

from rollbus.consumers.export.numbers import HALF_CHARACTER
from tests.readers.cases import CHANGED_EPISODES, PAIRS, Episode, episodes, write_export, write_truth
from tests.readers.environments import run_check

pytestmark = pytest.mark.readers


def test_a_step_of_trl_trains_on_what_was_sampled(tmp_path: Path) -> None:
    answers = [episode for episode in episodes() if len(episode.turns) == 1]
    _, _, sft = write_export(tmp_path / "sft", answers, reader="trl", kind="sft", sft_layout="prompt-completion")
    _, left_out, dpo = write_export(tmp_path / "dpo", PAIRS, reader="trl", kind="dpo")
    assert left_out == {}
    (tmp_path / "steps.json").write_text(json.dumps({"sft": sft, "dpo": dpo}))
    printed = run_check("trl", "check_trl", tmp_path)
    assert printed.count("SFT trains on the") == 6
    assert printed.count("DPO compares 7 pairs") == 2


def read_through_all(*left_out: str) -> tuple[list[Episode], list[Episode]]:
    """Return the conversations to export, and those of them that have to arrive."""
    chosen = [*episodes(), *CHANGED_EPISODES]
    return chosen, [episode for episode in chosen if episode.truth is not None and episode.name not in left_out]


def test_axolotl_tokenizes_what_was_recorded(tmp_path: Path) -> None:
    chosen, arriving = read_through_all()
    write_export(tmp_path, chosen, reader="axolotl", kind="sft")
    write_truth(tmp_path, arriving)
    _, left_out, _ = write_export(tmp_path / "dpo", PAIRS, reader="axolotl", kind="dpo")
    assert left_out == {"pairs with tool calls, which Axolotl's DPO does not pass on as they are": 1}
    printed = run_check("axolotl", "check_axolotl", tmp_path)
    assert printed.count("rows are tokenized as recorded") == 5
    assert "6 pairs are rendered as recorded" in printed


def test_nemo_tokenizes_what_was_recorded(tmp_path: Path) -> None:
    chosen, arriving = read_through_all()
    _, left_out, _ = write_export(tmp_path, chosen, reader="nemo", kind="sft")
    no_object = "conversations with arguments that are not a JSON object"
    assert left_out == {"not text": 1, f"conversations {HALF_CHARACTER}": 1, no_object: 1}
    write_truth(tmp_path, arriving)
    printed = run_check("nemo", "check_nemo", tmp_path)
    assert printed.count("rows are tokenized as recorded") == 3


def test_verl_tokenizes_what_was_recorded(tmp_path: Path) -> None:
    chosen, arriving = read_through_all("tools", "single", "thinking", *(episode.name for episode in CHANGED_EPISODES))
    _, left_out, _ = write_export(tmp_path, chosen, reader="verl", kind="sft")
    assert left_out["conversations with thinking, which verl's SFT does not pass on as it is"] == 1
    write_truth(tmp_path, arriving)
    write_export(tmp_path / "problems", chosen, reader="verl", kind="evaluation")
    printed = run_check("verl", "check_verl", tmp_path)
    assert f"{len(arriving)} conversations are tokenized as recorded" in printed
    assert "problems are asked as recorded" in printed


def test_openai_s_files_have_its_form(tmp_path: Path) -> None:
    chosen, arriving = read_through_all("thinking")
    _, left_out, _ = write_export(tmp_path, chosen, reader="openai", kind="sft")
    assert left_out["conversations with thinking, for which OpenAI's form has no field"] == 1
    write_truth(tmp_path, arriving)
    write_export(tmp_path / "dpo", PAIRS, reader="openai", kind="dpo")
    printed = run_check("openai", "check_openai", tmp_path)
    assert f"{len(arriving)} conversations have the API's form" in printed
    assert "7 pairs have the API's form" in printed
