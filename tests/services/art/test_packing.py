"""What ART packs for its own service is what grouping decided; what we compute of its advantages is what it packs."""

import json
from pathlib import Path

import pytest

from rollbus.schemas.records.tokens import decode_token_ids
from rollbus.trainer.art_server.control.old_config import ClientConfig
from rollbus.trainer.backends.sequences import make_art_sequences
from tests.services.art.fixtures import Launcher
from tests.services.art.packing_case import CHOICES, batch, expected

pytestmark = pytest.mark.services


@pytest.mark.parametrize("aggregation", ["token_mean", "trajectory_mean", "prompt_mean"])
def test_packed_advantages_and_weights_are_those_given(
    art_launcher: Launcher, art_base_model: Path, tmp_path: Path, aggregation: str
) -> None:
    findings = tmp_path / "packed.json"
    arguments = (str(art_base_model), str(tmp_path / "art"), aggregation, str(findings))
    art_launcher.call("tests.services.art.packing_case:pack", *arguments)
    packed_tokens = json.loads(findings.read_text(encoding="utf-8"))
    assert len(packed_tokens) == len(expected(aggregation))
    for packed_token, expected_token in zip(packed_tokens, sorted(expected(aggregation)), strict=True):
        assert packed_token == pytest.approx(expected_token, rel=1e-5, abs=1e-6)


def test_arts_advantages_and_weights_are_those_that_art_packs(
    art_launcher: Launcher, art_base_model: Path, tmp_path: Path
) -> None:
    findings = tmp_path / "packed.json"
    arguments = (str(art_base_model), str(tmp_path / "art"), str(findings))
    art_launcher.call("tests.services.art.packing_case:pack_as_art", *arguments)
    document = json.loads(findings.read_text(encoding="utf-8"))
    assert document["defaults"] == ClientConfig().model_dump()
    for choice, packed in zip(CHOICES, document["rows"], strict=True):
        sequences = make_art_sequences(batch().trajectories, choice)
        rows = sorted(
            (decode_token_ids(sequence.token_ids).tolist(), list(sequence.advantages), sequence.weight)
            for sequence in sequences
        )
        assert [token_ids for token_ids, _, _ in rows] == [token_ids for token_ids, _, _ in packed]
        for (_, advantages, weight), (_, packed_advantages, packed_weights) in zip(rows, packed, strict=True):
            assert advantages == pytest.approx(packed_advantages, rel=1e-6)
            assert [weight] * len(advantages) == pytest.approx(packed_weights, rel=1e-6)
