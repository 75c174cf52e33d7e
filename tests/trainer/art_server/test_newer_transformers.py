"""Every family that the service runs, compared with a transformers newer than the project's: `make test-readers`."""

import json
from pathlib import Path
from typing import cast

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from rollbus.trainer.art_server.model.model import head, trunk
from rollbus.trainer.art_server.model.weights import to_hf_weights
from tests.models import load_model
from tests.readers.environments import run_check
from tests.trainer.art_server.test_families import KINDS, SHAPE, TOKENS

pytestmark = pytest.mark.readers


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for each kind: the model as the newer transformers saves it, and what it computes."""
    folder = tmp_path_factory.mktemp("models")
    (folder / "kinds.json").write_text(json.dumps({kind: SHAPE | fields for kind, fields in KINDS.items()}))
    (folder / "tokens.json").write_text(json.dumps(TOKENS.tolist()))
    assert run_check("trl", "check_causal_models", folder).strip() == "5.24.0"
    return folder


@pytest.mark.parametrize("kind", KINDS)
def test_logits_loss_and_every_gradient_are_those_of_a_newer_transformers(models: Path, kind: str) -> None:
    expected = load_file(models / kind / "expected.safetensors")
    (models / kind / "expected.safetensors").unlink()
    model, config = load_model(models / kind)
    model.train().requires_grad_(True)
    logits_B_T_V = head(model, trunk(model, TOKENS))
    assert expected["logits"].std() > 0.1
    assert torch.allclose(logits_B_T_V, expected["logits"], atol=1e-4)
    logprobs_B_T_V = torch.log_softmax(logits_B_T_V[:, :-1], dim=-1)
    loss = -logprobs_B_T_V.gather(2, TOKENS[:, 1:, None]).mean()
    torch.autograd.backward(loss)
    assert float(loss.detach()) == pytest.approx(float(expected["loss"]), abs=1e-5)
    gradients = to_hf_weights({name: cast(Tensor, weight.grad) for name, weight in model.named_parameters()}, config)
    assert {f"gradient.{name}" for name in gradients} == expected.keys() - {"logits", "loss"}
    for name, gradient in gradients.items():
        assert torch.allclose(gradient, expected[f"gradient.{name}"], atol=2e-5, rtol=1e-3), name
